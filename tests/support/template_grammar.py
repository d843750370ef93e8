"""Random chat templates: mostly parts that can compile, and some that look into contents."""

from __future__ import annotations

from hypothesis import strategies as st

PLAIN = ("'\\n'", "' a'", "'a '", "m.role", "bos_token", "loop.index | string", "m.name | default('n')", "m.contents")
CONTENT = ("m.content", "m['content']", "messages[0].content", "messages[-1].content", "c", "ns.x", "said()")
AROUND = (
    *("({}).strip()", "({}).strip('\\n')", "({}).lstrip()", "({}).rstrip('\\n')", "({} | trim)", "({} | string)"),
    *("({} or ' b')", "({} | default('z', true))", "echo({})", "echo(text={})", "trimmed('a', {})", "[{}] | first"),
)
LOOKING = (
    *("{} | length", "{} | upper", "({})[1:]", "({}).split('a')[0]", "{} | replace('a', 'b')", "{} | e", "({} * 2)"),
    *("({}).strip(' \\n')", "({}).strip('a')", "{} | trim(chars='a')", "(('' | safe) + {})", "({})[0]", "{} | safe"),
    *("m.get('content') ~ {}", "ns ~ {}", "loop.previtem ~ {}", "({}).lower()", "({} | list) | join('.')"),
)
ASKING = ("{}", "not {}", "{} == ''", "{} != none", "{} is defined", "{} is string", "echo({})")
LOOKING_ASKING = (
    "{} == 'a'",
    "'a' in {}",
    "{} is lower",
    "loop.changed({})",
    "{} | length > 1",
    "{} < 'b'",
    "{} in 'ab'",
)
SHAPE_ASKING = ("loop.first", "loop.last", "m.role == 'user'", "messages | length > 2", "'name' in m", "ns.seen")
MACROS = (
    "{% macro echo(text='') %}{{ text }}{% endmacro %}"
    "{% macro trimmed(before, text) %}{{ before }}{{ text | trim }}{% set ns.seen = true %}{% endmacro %}"
    "{% macro said(text=messages[0].content) %}{{ text }}{% endmacro %}"
)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.integers(0, 20 if depth else 9))
    if kind < 7:
        return draw(st.sampled_from(CONTENT))
    if kind < 10:
        return draw(st.sampled_from(PLAIN))
    one = draw(expressions(depth - 1))
    if kind < 15:
        return draw(st.sampled_from(AROUND)).format(one)
    if kind < 16:
        return draw(st.sampled_from(LOOKING)).format(one)
    if kind < 17:
        return f"({one} if {draw(conditions(depth - 1))} else {draw(expressions(depth - 1))})"
    return f"({one} {draw(st.sampled_from('~~+'))} {draw(expressions(depth - 1))})"


@st.composite
def conditions(draw: st.DrawFn, depth: int = 1) -> str:
    kind = draw(st.integers(0, 12))
    if kind < 6:
        return draw(st.sampled_from(SHAPE_ASKING))
    asked = draw(expressions(max(depth - 1, 0)))
    asking = draw(st.sampled_from(ASKING if kind < 11 else LOOKING_ASKING)).format(asked)
    return (
        asking
        if kind % 2
        else f"({asking} {draw(st.sampled_from(('and', 'or')))} {draw(st.sampled_from(SHAPE_ASKING))})"
    )


@st.composite
def bodies(draw: st.DrawFn, depth: int = 2) -> str:
    return "".join(draw(st.lists(statements(depth), min_size=1, max_size=3)))


@st.composite
def statements(draw: st.DrawFn, depth: int) -> str:
    match draw(st.integers(0, 14 if depth else 8)):
        case 0:
            return draw(st.sampled_from(("\n", "a ", " \n", "</s>", "<i>")))
        case 1 | 2 | 3 | 4:
            return "{{ " + draw(expressions()) + " }}"
        case 5 | 6:
            return "{% set c = " + draw(expressions()) + " %}"
        case 7:
            return "{% set ns.x = " + draw(expressions()) + " %}"
        case 8:
            return (
                "{% if "
                + draw(conditions())
                + " %}{% "
                + draw(st.sampled_from(("break", "continue")))
                + " %}{% endif %}"
            )
        case 9 | 10:
            made = "{% if " + draw(conditions()) + " %}" + draw(bodies(depth - 1))
            return made + "{% else %}" + draw(bodies(depth - 1)) + "{% endif %}"
        case 11:
            return "{% set c %}" + draw(bodies(depth - 1)) + "{% endset %}"
        case 12:
            return "{% with c = " + draw(expressions()) + " %}" + draw(bodies(depth - 1)) + "{% endwith %}"
        case 13:
            return "{% generation %}" + draw(bodies(depth - 1)) + "{% endgeneration %}"
        case _:
            over = draw(st.sampled_from(("[1, 2]", "messages[1:]", "messages", "range(2)", "loop", "[c]", "c", "m")))
            return (
                "{% for "
                + draw(st.sampled_from(("m", "c", "x")))
                + " in "
                + over
                + " %}"
                + draw(bodies(0))
                + "{% endfor %}"
            )


@st.composite
def templates(draw: st.DrawFn) -> str:
    space = "{% set ns = namespace(seen=false, x=" + draw(st.sampled_from(("''", "messages[0].content"))) + ") %}"
    over = draw(
        st.sampled_from(("messages", "messages[1:]", "messages | rejectattr('role', 'eq', 'system')", "messages"))
    )
    chosen = draw(st.sampled_from(("", "", " if m.content", " if m.role != 'system'", " if m.content != 'a'")))
    loop = "{% for m in " + over + chosen + " %}" + draw(bodies()) + "{% endfor %}"
    return (
        MACROS
        + space
        + "{% set c = '' %}"
        + loop
        + draw(st.sampled_from(("", "{{ c }}", "{{ ns.x | trim }}", "{{ ns.x }}")))
    )

"""Texts that probes use: many scripts, white space, digits, marks, and code points of several planes."""

FIXED_TEXTS = (
    "Below is an instruction that describes a task; it's what we'll answer, isn't it?",
    "Größe, naïve café, ĳsland, ﬁne; e\u0301 and \u00e9; İstanbul, ΣΊΣΥΦΟΣ, straße",
    "Привет мир, как дела? 你好，世界 今天。 こんにちは カタカナ 한국어 \u1112\u1161\u11ab",
    "مرحبا بالعالم ١٢٣ שלום नमस्ते दुनिया ไทย တမန်မာ ქართული Հայերեն",
    "👩‍👩‍👧 🌊🏽 🇩🇪 \U0001f9ff \U00020000 \u2028\u00a0\u3000\ufeff x\u200db",
    "  tabs\tand\r\nlines\n\n\n    return x[1] == 3.14e-5 and (a_b != 'c') # 1234567 ½ ² Ⅷ",
    "",
    " ",
)

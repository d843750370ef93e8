(() => {
  const form = document.getElementById("filter");
  const cards = [...document.querySelectorAll("article")];
  const groups = [...document.querySelectorAll("section.cards")];
  const show = () => {
    const state = form.elements.state.value;
    const code = form.elements.code ? form.elements.code.value : "";
    for (const card of cards) {
      card.hidden = !(
        (!state || card.dataset.state.split(" ").includes(state)) && (!code || card.dataset.code === code)
      );
    }
    for (const group of groups) {
      group.hidden = !group.querySelector("article:not([hidden])");
    }
    const count = cards.filter((card) => !card.hidden).length;
    form.querySelector("output").textContent = `${count} of ${cards.length} rows listed`;
  };
  form.addEventListener("change", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
})();

"use strict";
/* Draw everything when the page has loaded, and again for another width, other colours, or paper. */
(() => {
  const root = document.documentElement;
  const drawn = [
    ...[...document.querySelectorAll("figure.chart")].map((figure) => new Chart(figure)),
    ...[...document.querySelectorAll("figure.timeline")].map((figure) => new Timeline(figure)),
  ];
  const draw = () => drawn.forEach((each) => each.draw());
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = (name) => {
    root.dataset.theme = name;
    button.textContent = name === "dark" ? "light" : "dark";
    button.setAttribute("aria-label", "use " + button.textContent + " colours");
    draw();
  };
  button.addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  theme(dark.matches ? "dark" : "light");
  let wide = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === wide) return;
    wide = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  });
  let before = null;
  const paper = (on) => {
    if (on === look.paper) return;
    look.paper = on;
    if (on) { before = root.dataset.theme; root.dataset.theme = "light"; } else root.dataset.theme = before;
    draw();
  };
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  matchMedia("print").addEventListener("change", (event) => paper(event.matches));
  document.querySelectorAll(".code").forEach((box) => {
    if (!navigator.clipboard) return;
    const copy = look.make("button", { type: "button", text: "copy" }, box);
    copy.addEventListener("click", () => navigator.clipboard.writeText(box.querySelector("pre").textContent)
      .then(() => { copy.textContent = "copied"; }, () => { copy.textContent = "not allowed"; }));
  });
})();

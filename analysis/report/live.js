"use strict";
/* Reload the page of a running command, and say so if it is no longer written. */
(() => {
  const state = document.getElementById("live");
  if (state.dataset.state !== "running") return;
  const written = Number(state.dataset.written), kept = "gradwire-theme";
  const button = document.getElementById("theme");
  if (sessionStorage.getItem(kept) && button.textContent === sessionStorage.getItem(kept)) button.click();
  button.addEventListener("click", () => sessionStorage.setItem(kept, document.documentElement.dataset.theme));
  const check = () => {
    const silent = Date.now() - written > Number(state.dataset.silent);
    document.getElementById("silent").hidden = !silent;
    if (silent) document.title = "no update · " + document.title.replace(/^no update · /, "");
  };
  const at = new Date(written).toTimeString().slice(0, 8);
  document.getElementById("silent").textContent =
    "No update since " + at + ": the command was killed, hangs, or its machine sleeps.";
  check();
  setInterval(check, 1000);
  setTimeout(() => location.reload(), Number(state.dataset.reload));
})();

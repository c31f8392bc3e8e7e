"use strict";
const all = document.getElementById("select-all");
if (all) {
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll("input.action-select")) box.checked = all.checked;
  });
}

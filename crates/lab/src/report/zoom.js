// Adds zoom to figures, and unfolds appendices that a link leads to; the report is whole without it.
document.querySelectorAll("figure .draw").forEach(function (draw) {
  draw.tabIndex = 0;
  draw.title = "click to enlarge";
  var toggle = function () { draw.classList.toggle("zoomed"); };
  draw.addEventListener("click", toggle);
  draw.addEventListener("keydown", function (e) {
    if (e.key === "Enter" || (e.key === "Escape" && draw.classList.contains("zoomed"))) toggle();
  });
});
var unfold = function () {
  var at = document.getElementById(location.hash.slice(1));
  for (var e = at; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  if (at) at.scrollIntoView();
};
window.addEventListener("hashchange", unfold);
unfold();
var heading = document.querySelector(".appendices"), all = document.createElement("button");
all.className = "unfold";
all.textContent = "unfold all";
all.addEventListener("click", function () {
  var open = all.textContent === "unfold all";
  document.querySelectorAll("details.appendix").forEach(function (d) { d.open = open; });
  all.textContent = open ? "fold all" : "unfold all";
});
heading.appendChild(all);

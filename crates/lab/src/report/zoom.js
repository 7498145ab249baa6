// Adds zoom to figures; the report is whole without it.
document.querySelectorAll("figure .draw").forEach(function (draw) {
  draw.tabIndex = 0;
  draw.title = "click to enlarge";
  var toggle = function () { draw.classList.toggle("zoomed"); };
  draw.addEventListener("click", toggle);
  draw.addEventListener("keydown", function (e) {
    if (e.key === "Enter" || (e.key === "Escape" && draw.classList.contains("zoomed"))) toggle();
  });
});
window.addEventListener("beforeprint", function () {
  document.querySelectorAll("details").forEach(function (d) { d.open = true; });
});

// Sorts the table by the column whose heading is pressed; cells carry their value in data-v.
document.querySelectorAll("th button").forEach(function (button) {
  button.addEventListener("click", function () {
    var head = button.parentNode, column = head.cellIndex, body = head.closest("table").tBodies[0];
    var text = head.dataset.type === "text", now = head.getAttribute("aria-sort");
    var up = now ? now === "descending" : text;
    var value = function (row) {
      var v = row.cells[column].dataset.v;
      return text ? v : v === "" ? -Infinity : v === "nan" ? Infinity : Number(v.replace("inf", "Infinity"));
    };
    Array.from(head.parentNode.cells).forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    Array.from(body.rows).sort(function (one, other) {
      var a = value(one), b = value(other), order = text ? a.localeCompare(b) : a > b ? 1 : b > a ? -1 : 0;
      return up ? order : -order;
    }).forEach(function (row) { body.append(row); });
  });
});


// A click on a column's head sorts by it: numbers the largest first, text from A on; a second click the other way.
for (const head of document.querySelectorAll("th")) {
  head.firstElementChild.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const isNumber = head.classList.contains("number");
    const was = head.getAttribute("aria-sort");
    const rising = was ? was === "descending" : !isNumber;
    const sign = rising ? 1 : -1;
    const key = (row) => {
      const cell = row.cells[head.cellIndex];
      if (!isNumber) return cell.textContent;
      return cell.dataset.sort === "" ? null : Number(cell.dataset.sort);
    };
    const compare = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null); // what has no figure is last either way
      return sign * (isNumber ? a - b : a.localeCompare(b));
    };
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort((a, b) => compare(a[0], b[0]));
    body.append(...rows.map((each) => each[1]));
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  });
}

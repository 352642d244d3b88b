// Starts a viewer for each method. Links choose what it shows: #node=NAME, #find=TEXT, &method=NAME,
// and &by=precision, decision, range or bytes.

const { body } = document;
body.dataset.errors = "";
window.addEventListener("error", (event) => { body.dataset.errors += `${event.message}\n`; });

const counts = new Map();
const viewers = [...document.querySelectorAll(".viewer")].map((root) => {
  const method = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  return new Viewer(root, method, (viewer, count) => {
    counts.set(viewer, count);
    body.dataset.drawn = [...counts.values()].reduce((sum, each) => sum + each, 0);
  });
});

function follow() {
  const asked = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  const text = asked.get("node") ?? asked.get("find"), method = asked.get("method");
  const wanted = viewers.filter((each) => method === null || each.method.method === method);
  if (Object.hasOwn(MODES, asked.get("by") ?? "")) wanted.forEach((each) => each.colorWith(asked.get("by")));
  if (text !== null) wanted.find((each) => each.find(text))?.root.scrollIntoView();
}

// The first cells of tables of decisions are names of nodes.
for (const table of document.querySelectorAll("table[data-method]")) {
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("tbody td:first-child");
    const viewer = cell && viewers.find((each) => each.method.method === table.dataset.method);
    if (viewer?.find(cell.textContent)) viewer.root.scrollIntoView({ block: "start" });
  });
}
window.addEventListener("hashchange", follow);
follow();

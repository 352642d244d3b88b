// Starts a viewer for each method; links of the form #node=NAME and #find=TEXT choose nodes.

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
  const text = asked.get("node") ?? asked.get("find");
  if (text === null) return;
  const method = asked.get("method");
  const viewer = viewers.find((each) => (method === null || each.method.method === method) && each.find(text));
  viewer?.root.scrollIntoView();
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

// What the reader does with a viewer.

/** Let a viewer answer to pointer, wheel and keys. */
function listen(view) {
  view.search.addEventListener("input", () => view.find(view.search.value));
  view.search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") view.step(event.shiftKey ? -1 : 1);
  });
  view.colorBy.addEventListener("change", () => view.colorWith(view.colorBy.value));
  view.canvas.addEventListener("keydown", (event) => pressKey(view, event));
  view.canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    view.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0016)), event.offsetX, event.offsetY);
  }, { passive: false });
  followPointers(view);
  new ResizeObserver(() => view.resize()).observe(view.canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    view.palette = new Palette(view.root);
    view.draw();
  });
}

function pressKey(view, event) {
  const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (moves[event.key]) view.pan(...moves[event.key]);
  else if (event.key === "+" || event.key === "=") view.zoom(1.4);
  else if (event.key === "-") view.zoom(1 / 1.4);
  else if (event.key === "0") view.fit();
  else if (event.key === "Escape") view.select(null);
  else return;
  event.preventDefault();
}

/** Pointers: one drags or clicks, two pinch. */
function followPointers(view) {
  const down = new Map();
  let moved = 0;
  const middle = () => {
    const [a, b] = [...down.values()];
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, apart: Math.hypot(a.x - b.x, a.y - b.y) };
  };
  const { canvas } = view;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    down.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    if (down.size === 1) moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = [event.offsetX, event.offsetY], was = down.get(event.pointerId);
    if (!was) return view.hover(view.nodeAt(x, y), x, y);
    moved += Math.hypot(x - was.x, y - was.y);
    const before = down.size === 2 ? middle() : null;
    down.set(event.pointerId, { x, y });
    if (before) {
      const now = middle();
      view.pan(now.x - before.x, now.y - before.y);
      view.zoom(now.apart / Math.max(1, before.apart), now.x, now.y);
    } else if (down.size === 1 && moved > 4) {
      view.hover(null);
      canvas.style.cursor = "grabbing";
      view.pan(x - was.x, y - was.y);
    }
  });
  const up = (event) => {
    if (down.delete(event.pointerId) && !down.size && moved <= 4 && event.type === "pointerup") {
      view.select(view.nodeAt(event.offsetX, event.offsetY));
    }
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => view.hover(null));
  canvas.addEventListener("dblclick", (event) => {
    const node = view.nodeAt(event.offsetX, event.offsetY);
    const opens = node === null ? null : view.graph.nodes[node].opens;
    if (opens) view.open(opens[0], node);
    else view.zoom(1.8, event.offsetX, event.offsetY);
  });
}

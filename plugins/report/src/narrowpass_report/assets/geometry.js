// Where things stand on the canvas: layers from top to bottom, broken into columns like text.

const COLUMN_GAP = 56;
const LANE = 6; // pixels between lines that run beside each other from one column to the next

/** Return the place of each node and the path of each line, for a canvas of this shape. */
function arrange(graph, width, height) {
  const points = pointsOf(graph);
  const crossing = linesBetween(graph, points);
  const starts = columns(graph, points, crossing, width, height);
  return placed(graph, points, starts);
}

/** Nodes and runs alike: x, half the width, first and last layer. */
function pointsOf(graph) {
  const points = graph.layers.map((layer, i) => ({
    x: graph.x[i], half: graph.sizes[2 * i] / 2, height: graph.sizes[2 * i + 1],
    first: layer, last: layer,
  }));
  for (let i = 0; i < graph.runs.length; i += 3) {
    points.push({ x: graph.runs[i], half: 0, height: 0, first: graph.runs[i + 1], last: graph.runs[i + 2] });
  }
  return points;
}

/** How many lines cross the gap below each layer. */
function linesBetween(graph, points) {
  const count = new Array(graph.tops.length).fill(0);
  for (let i = 0; i < graph.segments.length; i += 3) {
    count[points[graph.segments[i + 1]].first - 1] += 1;
  }
  for (let i = graph.layers.length; i < points.length; i++) {
    for (let layer = points[i].first; layer < points[i].last; layer++) count[layer] += 1;
  }
  return count;
}

/** Choose the first layers of columns such that all of the graph is shown as large as can be. */
function columns(graph, points, crossing, width, height) {
  const layers = graph.tops.length;
  const left = new Array(layers).fill(Infinity), right = new Array(layers).fill(-Infinity);
  points.forEach((p, i) => {
    for (let l = p.first; l <= p.last; l++) {
      left[l] = Math.min(left[l], p.x - p.half);
      right[l] = Math.max(right[l], p.x + p.half);
    }
  });
  const total = layers ? graph.tops[layers - 1] + graph.heights[layers - 1] : 0;
  let best = [0], most = 0;
  for (let wanted = 1; wanted <= Math.min(48, layers); wanted++) {
    const starts = [0];
    while (starts.length < wanted) {
      const from = starts[starts.length - 1];
      const next = breakAfter(graph, crossing, from, (total - graph.tops[from]) / (wanted - starts.length + 1));
      if (next >= layers) break;
      starts.push(next);
    }
    let wide = 0, tall = 0;
    starts.forEach((from, c) => {
      const to = (starts[c + 1] ?? layers) - 1;
      wide += Math.max(...right.slice(from, to + 1)) - Math.min(...left.slice(from, to + 1));
      wide += c ? COLUMN_GAP + LANE * crossing[from - 1] : 0;
      tall = Math.max(tall, graph.tops[to] + graph.heights[to] - graph.tops[from]);
    });
    const scale = Math.min(1, width / (wide + 80), height / (tall + 80));
    if (scale > most * 1.04) [best, most] = [starts, scale];
  }
  return best;
}

/** Return a layer at about this height below another, after a thin gap. */
function breakAfter(graph, crossing, from, height) {
  let found = graph.tops.length, least = Infinity;
  for (let layer = from + 1; layer < graph.tops.length; layer++) {
    const share = (graph.tops[layer] - graph.tops[from]) / height;
    if (share < 0.9) continue;
    if (share > 1.08 && least < Infinity) break;
    const cost = crossing[layer - 1] + 30 * Math.abs(share - 1);
    if (cost < least) [found, least] = [layer, cost];
  }
  return found;
}

function placed(graph, points, starts) {
  const layers = graph.tops.length;
  const ends = starts.map((_, c) => (starts[c + 1] ?? layers) - 1);
  const column = new Array(layers);
  starts.forEach((from, c) => { for (let l = from; l <= ends[c]; l++) column[l] = c; });
  const boxes = starts.map(() => ({ left: Infinity, right: -Infinity, lanes: 0 }));
  for (const p of points) {
    for (let c = column[p.first]; c <= column[p.last]; c++) {
      boxes[c].left = Math.min(boxes[c].left, p.x - p.half);
      boxes[c].right = Math.max(boxes[c].right, p.x + p.half);
    }
  }
  const lines = linesOf(graph, points, column);
  // Lines from the left go outermost around the others, so that they do not cross.
  const around = lines.filter((line) => line.to.column > line.from.column);
  around.sort((a, b) => b.from.x - a.from.x);
  for (const line of around) line.lane = boxes[line.from.column].lanes++;
  let x = 0;
  boxes.forEach((box, c) => {
    box.shift = x - box.left;
    box.gutter = x + box.right - box.left + COLUMN_GAP / 2;
    box.top = graph.tops[starts[c]];
    box.bottom = graph.tops[ends[c]] + graph.heights[ends[c]] - box.top;
    x = box.gutter + COLUMN_GAP / 2 + LANE * box.lanes;
  });
  const at = (end, upper) => ({
    x: end.x + boxes[end.column].shift,
    y: graph.tops[end.layer] - boxes[end.column].top + (end.height === 0
      ? (upper ? 0 : graph.heights[end.layer])
      : (graph.heights[end.layer] + (upper ? -end.height : end.height)) / 2),
  });
  const nodes = graph.layers.map((layer, i) => {
    const box = boxes[column[layer]], p = points[i];
    return { x: p.x + box.shift, y: graph.tops[layer] - box.top + graph.heights[layer] / 2, w: 2 * p.half, h: p.height };
  });
  const paths = lines.map((line) => ({
    value: line.value, source: line.source, target: line.target, parent: line.parent,
    path: path(at(line.from, line.straight), at(line.to, !line.straight), line, boxes),
  }));
  spread(nodes, paths);
  const bounds = { left: -30, right: x - COLUMN_GAP / 2, top: -30, bottom: 30 };
  for (const box of boxes) {
    bounds.top = Math.min(bounds.top, -30 - LANE * box.lanes);
    bounds.bottom = Math.max(bounds.bottom, box.bottom + 30 + LANE * box.lanes);
  }
  return { nodes, lines: paths, bounds };
}

/** Lines within a column or from one to the next: segments, and the pieces of runs. */
function linesOf(graph, points, column) {
  const count = graph.layers.length, lines = [], into = new Map(), pieces = new Map();
  const end = (i, layer) => ({ x: points[i].x, layer, column: column[layer], height: points[i].height });
  const add = (from, to, more) => lines.push({ from, to, ...more }) - 1;
  for (let i = 0; i < graph.segments.length; i += 3) {
    const [upper, lower, value] = graph.segments.slice(i, i + 3);
    const source = upper < count ? upper : into.get(upper).source;
    const start = points[lower].first - 1;
    const parent = upper < count ? -1 : pieces.get(upper).find((p) => p.last >= start).line;
    let line = add(end(upper, start), end(lower, points[lower].first), { value, source, parent, target: lower < count ? lower : -1 });
    if (lower < count) continue;
    into.set(lower, { source });
    const paths = [];
    for (let layer = points[lower].first; layer <= points[lower].last;) {
      let last = layer;
      while (last < points[lower].last && column[last + 1] === column[layer]) last++;
      const same = end(lower, layer), until = end(lower, last);
      line = add(same, until, { value, source, parent: line, target: -1, straight: true });
      paths.push({ last, line });
      if (last < points[lower].last) {
        line = add(end(lower, last), end(lower, last + 1), { value, source, parent: line, target: -1 });
      }
      layer = last + 1;
    }
    pieces.set(lower, paths);
  }
  return lines;
}

/** Corners of a line: two are straight or a curve between layers, more are a way around to the next column. */
function path(from, to, line, boxes) {
  const a = line.from.column, b = line.to.column;
  if (a === b) return [from.x, from.y, to.x, to.y];
  const low = boxes[a].bottom + 16 + LANE * line.lane;
  const high = -16 - LANE * (boxes[a].lanes - 1 - line.lane);
  const gutter = boxes[a].gutter + LANE * line.lane;
  return [from.x, from.y, from.x, low, gutter, low, gutter, high, to.x, high, to.x, to.y];
}

/** Let lines end beside each other at the top of a node. */
function spread(nodes, lines) {
  const ending = new Map();
  for (const line of lines) {
    if (line.target < 0) continue; // it goes on
    if (!ending.has(line.target)) ending.set(line.target, []);
    ending.get(line.target).push(line);
  }
  for (const [target, each] of ending) {
    if (each.length < 2) continue;
    const step = Math.min(16, (nodes[target].w - 20) / each.length);
    each.sort((a, b) => a.path[a.path.length - 4] - b.path[b.path.length - 4]);
    each.forEach((line, i) => {
      const shift = (i - (each.length - 1) / 2) * step;
      line.path[line.path.length - 2] += shift;
      if (line.path.length > 4) line.path[line.path.length - 4] += shift;
    });
  }
}

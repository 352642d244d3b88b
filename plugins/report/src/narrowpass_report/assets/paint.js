// Drawing of one graph on a canvas: only what is in view, and no more detail than can be seen.

const TEXT_SCALE = 0.42, SMALL_TEXT_SCALE = 0.62, SHAPE_SCALE = 0.16;

/** Draw all that is in view; returns the number of nodes of the graph that were drawn. */
function paint(view) {
  const { context: c, camera, scene, palette } = view;
  const ratio = devicePixelRatio || 1;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, view.width, view.height);
  c.setTransform(ratio * camera.k, 0, 0, ratio * camera.k, ratio * camera.x, ratio * camera.y);
  const seen = {
    left: -camera.x / camera.k, right: (view.width - camera.x) / camera.k,
    top: -camera.y / camera.k, bottom: (view.height - camera.y) / camera.k,
  };
  paintLines(view, seen);
  let drawn = 0;
  scene.nodes.forEach((place, i) => {
    if (place.x + place.w / 2 < seen.left || place.x - place.w / 2 > seen.right) return;
    if (place.y + place.h / 2 < seen.top || place.y - place.h / 2 > seen.bottom) return;
    c.globalAlpha = view.faded(i) ? 0.16 : 1;
    paintNode(view, i, place);
    if (i < view.graph.count) drawn += 1;
  });
  c.globalAlpha = 1;
  for (const [i, color] of view.marked()) ring(c, scene.nodes[i], palette.get(color), camera.k);
  return drawn;
}

function paintLines(view, seen) {
  const { context: c, camera, scene, palette } = view;
  const groups = new Map(), chosen = [];
  const curved = camera.k > SHAPE_SCALE;
  scene.lines.forEach((line, i) => {
    if (view.litLines.has(i)) chosen.push(line);
    else if (inSight(line.path, seen)) {
      const type = view.typeOf(line.value);
      if (!groups.has(type)) groups.set(type, []);
      groups.get(type).push(line);
    }
  });
  c.lineJoin = "round";
  for (const [type, lines] of groups) {
    c.strokeStyle = palette.get(`--${type}`);
    c.globalAlpha = view.litLines.size ? 0.3 : 0.75;
    c.lineWidth = Math.max(1.4, 0.7 / camera.k);
    c.beginPath();
    for (const line of lines) trace(c, line.path, curved);
    c.stroke();
  }
  c.globalAlpha = 1;
  c.strokeStyle = palette.get("--accent");
  c.lineWidth = Math.max(2.6, 2 / camera.k);
  c.beginPath();
  for (const line of chosen) trace(c, line.path, curved);
  for (const [a, b] of view.farLines()) {
    c.moveTo(a.x, a.y + a.h / 2);
    c.lineTo(b.x, b.y - b.h / 2);
  }
  c.stroke();
  if (camera.k > TEXT_SCALE) arrows(view, seen);
}

function inSight(path, seen) {
  let left = Infinity, right = -Infinity, top = Infinity, bottom = -Infinity;
  for (let i = 0; i < path.length; i += 2) {
    left = Math.min(left, path[i]); right = Math.max(right, path[i]);
    top = Math.min(top, path[i + 1]); bottom = Math.max(bottom, path[i + 1]);
  }
  return right >= seen.left && left <= seen.right && bottom >= seen.top && top <= seen.bottom;
}

function trace(c, path, curved) {
  const [x, y] = path, n = path.length;
  c.moveTo(x, y);
  if (n === 4) {
    const [, , tx, ty] = path;
    if (!curved || x === tx) c.lineTo(tx, ty);
    else {
      const bend = (ty - y) / 2;
      c.bezierCurveTo(x, y + bend, tx, ty - bend, tx, ty);
    }
    return;
  }
  for (let i = 2; i < n - 2; i += 2) c.arcTo(path[i], path[i + 1], path[i + 2], path[i + 3], 10);
  c.lineTo(path[n - 2], path[n - 1]);
}

function arrows(view, seen) {
  const { context: c, scene, palette } = view;
  scene.lines.forEach((line, i) => {
    if (line.target < 0 || !inSight(line.path, seen)) return;
    const x = line.path[line.path.length - 2], y = line.path[line.path.length - 1];
    c.fillStyle = palette.get(view.litLines.has(i) ? "--accent" : `--${view.typeOf(line.value)}`);
    c.beginPath();
    c.moveTo(x, y + 0.5);
    c.lineTo(x - 3.6, y - 6.5);
    c.lineTo(x + 3.6, y - 6.5);
    c.fill();
  });
}

function paintNode(view, i, place) {
  const { context: c, camera, palette, graph } = view;
  const node = graph.nodes[i], color = palette.get(view.colorOf(i));
  const x = place.x - place.w / 2, y = place.y - place.h / 2;
  if (node.kind) return paintEnd(view, node, place, color);
  c.fillStyle = color;
  if (view.isCast(i)) return paintCast(view, i, place, color);
  if (camera.k < SHAPE_SCALE) return c.fillRect(x, y, place.w, place.h);
  box(c, x, y, place.w, place.h, 7);
  c.fill();
  if (node.opens) {
    c.lineWidth = 1.5;
    c.strokeStyle = color;
    box(c, x - 3.5, y - 3.5, place.w + 7, place.h + 7, 10);
    c.stroke();
  }
  if (camera.k > TEXT_SCALE) paintText(view, node, place, palette.on(color));
  badge(c, view.facts[i].color, x + place.w - 4, y + 4, palette);
}

function paintText(view, node, place, ink) {
  const { context: c, camera } = view;
  const value = view.graph.values[node.out[0]], second = value ? view.method.texts[value[2]] : "";
  const both = second && camera.k > SMALL_TEXT_SCALE;
  c.fillStyle = ink;
  c.textAlign = "center";
  c.textBaseline = "middle";
  c.font = "600 13px system-ui, sans-serif";
  c.fillText(fitted(c, view.operator(node), place.w - 14), place.x, place.y - (both ? 7 : 0));
  if (!both) return;
  c.font = "10.5px system-ui, sans-serif";
  c.fillText(fitted(c, second, place.w - 14), place.x, place.y + 9.5);
}

/** A change of type: its upper half has the colour of what it reads, the lower of what it computes. */
function paintCast(view, i, place, color) {
  const { context: c, camera, palette, graph } = view;
  const x = place.x - place.w / 2, y = place.y - place.h / 2, slant = 9;
  const hexagon = () => {
    c.beginPath();
    c.moveTo(x, place.y);
    c.lineTo(x + slant, y);
    c.lineTo(x + place.w - slant, y);
    c.lineTo(x + place.w, place.y);
    c.lineTo(x + place.w - slant, y + place.h);
    c.lineTo(x + slant, y + place.h);
    c.closePath();
  };
  hexagon();
  c.fill();
  if (view.mode === "precision") {
    c.fillStyle = palette.get(`--${view.typeOf(graph.nodes[i].in[0])}`);
    c.beginPath();
    c.moveTo(x, place.y);
    c.lineTo(x + slant, y);
    c.lineTo(x + place.w - slant, y);
    c.lineTo(x + place.w, place.y);
    c.fill();
  }
  hexagon();
  c.lineWidth = Math.max(1.5, Math.min(6, 0.9 / camera.k));
  c.strokeStyle = palette.get("--ink");
  c.stroke();
  if (camera.k > TEXT_SCALE) label(c, view.shortType(graph.nodes[i].out[0]), place, palette);
}

/** Text that can be read on two colours. */
function label(c, text, place, palette) {
  c.font = "700 10px system-ui, sans-serif";
  c.textAlign = "center";
  c.textBaseline = "middle";
  c.lineWidth = 3;
  c.strokeStyle = palette.get("--paper");
  c.strokeText(text, place.x, place.y + 0.5);
  c.fillStyle = palette.get("--ink");
  c.fillText(text, place.x, place.y + 0.5);
}

function paintEnd(view, node, place, color) {
  const { context: c, camera, palette } = view;
  const x = place.x - place.w / 2, y = place.y - place.h / 2;
  box(c, x, y, place.w, place.h, place.h / 2);
  c.fillStyle = palette.get("--canvas");
  c.fill();
  c.lineWidth = Math.max(2, Math.min(8, 1.2 / camera.k));
  c.strokeStyle = color;
  c.setLineDash(node.kind === "captured" ? [4, 3] : []);
  c.stroke();
  c.setLineDash([]);
  if (camera.k <= TEXT_SCALE) return;
  c.fillStyle = palette.get("--ink");
  c.textAlign = "center";
  c.textBaseline = "middle";
  c.font = "11px system-ui, sans-serif";
  c.fillText(fitted(c, node.name, place.w - 18), place.x, place.y + 0.5);
}

/** The colour decided, in a corner: a disc, a ring and a square differ without colour too. */
function badge(c, color, x, y, palette) {
  if (!color) return;
  c.beginPath();
  if (color === "red") c.rect(x - 4, y - 4, 8, 8);
  else c.arc(x, y, 4.2, 0, 2 * Math.PI);
  c.fillStyle = color === "gray" ? "#ffffff" : palette.get(`--decided-${color}`);
  c.fill();
  c.lineWidth = 1.8;
  c.strokeStyle = color === "gray" ? palette.get("--decided-gray") : "#ffffff";
  c.stroke();
}

function box(c, x, y, w, h, radius) {
  c.beginPath();
  c.roundRect(x, y, w, h, radius);
}

function ring(c, place, color, k) {
  const out = Math.max(3, 3 / k);
  c.lineWidth = Math.max(2.5, 2.5 / k);
  c.strokeStyle = color;
  box(c, place.x - place.w / 2 - out, place.y - place.h / 2 - out, place.w + 2 * out, place.h + 2 * out, 9);
  c.stroke();
}

/** As much of a text as there is room for. */
function fitted(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

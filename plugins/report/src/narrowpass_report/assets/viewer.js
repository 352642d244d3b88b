// One method's graphs: what is shown, and what the reader does with it.

const NEAREST = 2.5, FARTHEST = 0.004;

class Viewer {
  constructor(root, method, drawn) {
    this.root = root;
    this.method = method;
    this.drawn = drawn; // called with the number of nodes after each drawing
    this.mode = "precision";
    this.only = null; // the class of the legend that is not faded
    this.found = [];
    this.at = -1;
    this.scenes = new Map();
    this.build();
    this.palette = new Palette(root);
    this.open(0);
    listen(this);
  }

  build() {
    const button = (text, label, click) => createElement("button", { type: "button", text, title: label, "aria-label": label, on: { click } });
    this.search = createElement("input", { type: "search", placeholder: "Find a node or an operator", "aria-label": "Find a node or an operator" });
    this.matches = createElement("output", { class: "soft" });
    this.colorBy = createElement("select", { "aria-label": "Colour by" },
      ...Object.entries(MODES).map(([value, { label }]) => createElement("option", { value, text: label })));
    this.trail = createElement("nav", { class: "trail", "aria-label": "Graphs" });
    this.canvas = createElement("canvas", { tabindex: "0", role: "img" });
    this.tip = createElement("div", { class: "tip", hidden: "" });
    this.panel = createElement("aside", { tabindex: "-1", "aria-live": "polite", "aria-label": "Details" });
    this.legend = createElement("div", { class: "legend", role: "group", "aria-label": "Legend" });
    this.root.replaceChildren(
      createElement("div", { class: "tools" }, this.search,
        button("↑", "Previous match", () => this.step(-1)), button("↓", "Next match", () => this.step(1)),
        this.matches, createElement("span", { class: "space" }),
        createElement("label", {}, "Colour by ", this.colorBy),
        button("−", "Zoom out", () => this.zoom(1 / 1.4)), button("+", "Zoom in", () => this.zoom(1.4)),
        button("Fit", "Show all of the graph", () => this.fit()),
        button("Full screen", "Fill the screen", () => this.fill())),
      this.trail,
      createElement("div", { class: "stage" }, createElement("div", { class: "sheet" }, this.canvas, this.tip), this.panel),
      this.legend);
    this.context = this.canvas.getContext("2d");
  }

  // What is drawn

  open(number, node = null) {
    this.number = number;
    this.graph = this.method.graphs[number];
    this.graph.up ??= node === null ? null : [this.came ?? 0, node]; // a function: from where it is called
    this.came = number;
    this.facts = this.graph.nodes.map((each) => classify(this.method, this.graph, each));
    this.makers = new Map();
    this.readers = new Map();
    const note = (map, value, i) => map.set(value, [...(map.get(value) ?? []), i]);
    this.graph.nodes.forEach((each, i) => {
      for (const value of new Set(each.out ?? [])) note(this.makers, value, i);
      for (const value of new Set([...(each.in ?? []), ...(each.captured ?? [])])) note(this.readers, value, i);
    });
    this.selected = this.hovered = null;
    this.litLines = new Set();
    this.scene = null;
    this.showTrail();
    this.showNothing();
    this.recolor();
    this.resize();
    this.fit();
  }

  showTrail() {
    const steps = [];
    for (let n = this.number; ;) {
      const { title, up } = this.method.graphs[n], number = n;
      const node = up && this.method.graphs[up[0]].nodes[up[1]];
      steps.unshift(createElement("button", {
        type: "button", class: "link", "aria-current": n === this.number ? "page" : null,
        text: node ? `${node.name || "(unnamed)"}: ${title}` : title, on: { click: () => this.open(number) },
      }));
      if (!up || steps.length > 40) break;
      n = up[0];
    }
    this.trail.replaceChildren(...steps);
    this.trail.hidden = this.method.graphs.length < 2;
  }

  showNothing() {
    const { count, far } = this.graph;
    this.panel.replaceChildren(
      createElement("p", { class: "soft", text: `${count} nodes, from top to bottom, column by column. Click one to see what was decided about it and why.` }),
      createElement("p", { class: "soft", text: "Drag to move, turn the wheel to zoom. With the keyboard: arrows, +, − and 0." }),
      ...(far.length ? [createElement("p", { class: "soft", text: `${far.length / 3} long lines are drawn only for the node that is chosen.` })] : []));
  }

  recolor() {
    const mode = MODES[this.mode];
    this.entries = mode.entries(this.facts);
    this.colors = new Map(this.entries.map(([key, color]) => [key, color]));
    this.classes = this.facts.map(mode.of);
    const counts = new Map();
    this.classes.slice(0, this.graph.count).forEach((key) => counts.set(key, (counts.get(key) ?? 0) + 1));
    if (!counts.has(this.only)) this.only = null;
    const keys = this.entries.filter(([key]) => counts.has(key)).map(([key, color, name], at) => {
      const sample = createElement("i", {});
      sample.style.background = `var(${color})`;
      return createElement("button", {
        type: "button", "aria-pressed": String(this.only === key), title: "Show only these",
        on: { click: () => {
          this.only = this.only === key ? null : key;
          this.recolor();
          this.legend.children[at].focus(); // the button is another one now
        } },
      }, sample, `${name} `, createElement("b", { text: String(counts.get(key)) }));
    });
    const signs = [];
    if (this.facts.some((fact) => fact.color)) {
      for (const word of DECIDED) signs.push(createElement("span", {}, createElement("i", { class: `sign ${word}` }), `decided ${word}`));
    }
    if (this.graph.nodes.some((_, i) => this.isCast(i))) {
      signs.push(createElement("span", {}, createElement("i", { class: "sign cast" }), "cast: from the upper type to the lower"));
    }
    this.legend.replaceChildren(...keys, ...signs);
    this.canvas.setAttribute("aria-label", `Graph of ${this.graph.count} nodes; the tables below have the same as text`);
    this.draw();
  }

  colorWith(mode) {
    this.mode = this.colorBy.value = mode;
    this.only = null;
    this.recolor();
  }

  colorOf(i) {
    return this.colors.get(this.classes[i]) ?? "--unknown";
  }

  faded(i) {
    return this.only !== null && this.classes[i] !== this.only;
  }

  typeOf(value) {
    return value === undefined || value < 0 ? "unknown" : this.method.dtypes[this.graph.values[value][1]][1];
  }

  /** A type in three or four letters, as in "f16". */
  shortType(value) {
    const name = this.graph.values[value] ? this.method.dtypes[this.graph.values[value][1]][0] : "";
    return name.replace("bfloat", "bf").replace("float", "f").replace("uint", "u").replace("int", "i").slice(0, 5);
  }

  operator(node, full = false) {
    const name = node.op === undefined ? node.name : this.method.texts[node.op];
    return full && node.domain !== undefined ? `${this.method.texts[node.domain]}::${name}` : name;
  }

  isCast(i) {
    const node = this.graph.nodes[i];
    return node.domain === undefined && node.op !== undefined && this.method.texts[node.op] === "Cast";
  }

  marked() {
    const here = this.found.filter(([graph]) => graph === this.number).slice(0, 400);
    const marks = here.map(([, i]) => [i, "--accent"]);
    if (this.hovered !== null) marks.push([this.hovered, "--soft-ink"]);
    if (this.selected !== null) marks.push([this.selected, "--ink"]);
    return marks;
  }

  farLines() {
    const lines = [], { far } = this.graph;
    if (this.selected === null) return lines;
    for (let i = 0; i < far.length; i += 3) {
      if (far[i] === this.selected || far[i + 1] === this.selected) lines.push([this.scene.nodes[far[i]], this.scene.nodes[far[i + 1]]]);
    }
    return lines;
  }

  draw() {
    if (!this.scene || this.waiting) return;
    this.waiting = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    if (this.waiting) cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    this.drawn(this, paint(this));
  }

  // Where one looks

  resize() {
    const { width, height } = this.canvas.parentElement.getBoundingClientRect();
    const shape = Math.round(4 * Math.log2(width / height));
    this.width = width || 800;
    this.height = height || 600;
    this.canvas.width = Math.round(this.width * (devicePixelRatio || 1));
    this.canvas.height = Math.round(this.height * (devicePixelRatio || 1));
    const turned = this.scene && shape !== this.shape && !this.moved;
    if (turned || !this.scene) this.shape = shape;
    if (this.scene && !turned) return this.drawNow();
    this.scene = arrange(this.graph, this.width, this.height);
    this.into = new Map();
    this.scene.lines.forEach((line, i) => {
      if (line.target >= 0) this.into.set(line.target, [...(this.into.get(line.target) ?? []), i]);
    });
    this.light();
    if (turned) this.fit();
  }

  fit() {
    const { left, right, top, bottom } = this.scene.bounds, room = 14;
    const k = Math.min((this.width - 2 * room) / (right - left), (this.height - 2 * room) / (bottom - top), 1.3);
    this.moved = false;
    this.camera = { k, x: (this.width - k * (left + right)) / 2, y: (this.height - k * (top + bottom)) / 2 };
    this.drawNow();
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    this.moved = true; // from here on the reader's view is kept
    const { camera } = this, k = Math.max(FARTHEST, Math.min(NEAREST, camera.k * factor));
    camera.x = x - (x - camera.x) * (k / camera.k);
    camera.y = y - (y - camera.y) * (k / camera.k);
    camera.k = k;
    this.draw();
  }

  pan(dx, dy) {
    this.moved = true;
    this.camera.x += dx;
    this.camera.y += dy;
    this.draw();
  }

  fill() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.root.requestFullscreen?.();
  }

  nodeAt(x, y) {
    const wx = (x - this.camera.x) / this.camera.k, wy = (y - this.camera.y) / this.camera.k;
    const near = 3 / this.camera.k;
    for (let i = this.scene.nodes.length - 1; i >= 0; i--) {
      const { x: nx, y: ny, w, h } = this.scene.nodes[i];
      if (Math.abs(wx - nx) <= w / 2 + near && Math.abs(wy - ny) <= h / 2 + near) return i;
    }
    return null;
  }

  // What is chosen

  select(i, center = false) {
    this.selected = i;
    if (i === null) this.showNothing();
    else showDetails(this.panel, this, i);
    if (i !== null && center) {
      this.moved = true;
      const { x, y } = this.scene.nodes[i], k = Math.max(this.camera.k, 0.9);
      this.camera = { k, x: this.width / 2 - k * x, y: this.height / 2 - k * y };
    }
    this.light();
    this.drawNow();
    document.body.dataset.selected = i === null ? "" : this.graph.nodes[i].name;
  }

  /** Light the lines of the node that is chosen or pointed at. */
  light() {
    const node = this.hovered ?? this.selected;
    this.litLines = new Set();
    if (node === null) return;
    this.scene.lines.forEach((line, i) => { if (line.source === node) this.litLines.add(i); });
    for (const end of this.into.get(node) ?? []) {
      for (let i = end; i >= 0; i = this.scene.lines[i].parent) this.litLines.add(i);
    }
  }

  hover(i, x, y) {
    this.canvas.style.cursor = i === null ? "grab" : "pointer";
    this.tip.hidden = i === null;
    if (i !== null) {
      const node = this.graph.nodes[i], value = this.graph.values[(node.kind === "output" ? node.in : node.out)[0]];
      const [type, shape] = value ? [this.method.dtypes[value[1]][0], this.method.texts[value[2]]] : ["", ""];
      this.tip.replaceChildren(createElement("b", { text: node.kind ? KINDS[node.kind] : this.operator(node, true) }),
        createElement("span", { text: node.name }), createElement("span", { text: [type, shape].filter(Boolean).join(" · ") }),
        createElement("span", { text: (node.decisions ?? []).slice(-1).map((row) => this.method.texts[row[1]]).join("") }));
      this.tip.style.left = `${Math.min(x + 14, this.width - this.tip.offsetWidth - 6)}px`;
      this.tip.style.top = `${y + 18 + this.tip.offsetHeight > this.height ? y - this.tip.offsetHeight - 10 : y + 18}px`;
    }
    if (i === this.hovered) return;
    this.hovered = i;
    this.light();
    this.draw();
  }

  /** Find nodes by name or operator, those of that very name first; goes to the first. */
  find(text) {
    const wanted = text.trim().toLowerCase(), exact = [], others = [];
    this.method.graphs.forEach((graph, number) => {
      if (wanted) graph.nodes.forEach((node, i) => {
        const name = node.name.toLowerCase();
        if (name === wanted) exact.push([number, i]);
        else if (name.includes(wanted) || (node.op !== undefined && this.operator(node).toLowerCase().includes(wanted))) others.push([number, i]);
      });
    });
    exact.sort((a, b) => !!this.method.graphs[a[0]].nodes[a[1]].kind - !!this.method.graphs[b[0]].nodes[b[1]].kind);
    this.found = [...exact, ...others];
    this.at = -1;
    document.body.dataset.found = this.found.length;
    if (this.found.length) this.step(1);
    else {
      this.matches.textContent = wanted ? "none" : "";
      this.select(null);
    }
    return this.found.length;
  }

  step(by) {
    if (!this.found.length) return;
    this.at = (this.at + by + this.found.length) % this.found.length;
    const [graph, i] = this.found[this.at];
    if (graph !== this.number) this.open(graph);
    this.matches.textContent = `${this.at + 1} of ${this.found.length}`;
    this.select(i, true);
  }
}

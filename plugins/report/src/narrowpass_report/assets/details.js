// What is known of a node, beside the graph. Texts only ever become text nodes.

/** Make an element: its text, attributes, and what is within it. */
function make(tag, { text, on, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on ?? {})) element.addEventListener(name, listener);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Fill the panel with what there is to tell of a node. */
function showDetails(panel, view, i) {
  const { method, graph, facts } = view, node = graph.nodes[i];
  const text = (number) => method.texts[number];
  const parts = [
    make("h3", { text: node.name || "(unnamed)" }),
    make("p", { class: "operator", text: node.kind ? KINDS[node.kind] : view.operator(node, true) }),
  ];
  for (const [j, number] of (node.opens ?? []).entries()) {
    const { title, count } = method.graphs[number];
    parts.push(make("button", {
      class: "open", type: "button", text: `Open ${title}: ${count} ${count === 1 ? "node" : "nodes"}`,
      on: { click: () => { view.open(number, i); panel.focus(); } }, "data-open": j,
    }));
  }
  if (facts[i].bytes) parts.push(make("p", { text: `Weights: ${bytesText(facts[i].bytes)}` }));
  for (const [title, numbers] of [["Reads", node.in], ["Reads within", node.captured], ["Makes", node.out]]) {
    if (!numbers?.length) continue;
    const list = make("ul", { class: "values" });
    for (const number of numbers) list.append(valueItem(view, number, title === "Makes" ? i : -1, i));
    parts.push(make("h4", { text: title }), list);
  }
  if (node.told) parts.push(make("h4", { text: "Decisions" }));
  for (const [pass, decision, by, reason, measured, limit, error, about] of node.told ?? []) {
    const shown = make("div", { class: "decision" },
      make("p", {}, make("b", { text: text(decision) }), ` ${text(pass)}, by ${text(by) || "itself"}`));
    const word = text(decision).split(",")[0];
    if (DECIDED.includes(word)) shown.classList.add(`decided-${word}`);
    if (about !== undefined) shown.append(make("p", { class: "soft", text: `about ${text(about)}` }));
    if (text(reason)) shown.append(make("p", { text: text(reason) }));
    if (measured !== undefined && measured !== null) shown.append(gauge(measured, limit));
    if (error !== undefined && error !== null) {
      shown.append(make("p", { text: `error ${numberText(error)} of the largest element` }));
    }
    parts.push(shown);
  }
  panel.replaceChildren(...parts);
}

const KINDS = { input: "input of the graph", output: "output of the graph", captured: "value from outside" };

function valueItem(view, number, maker, self) {
  if (number < 0) return make("li", { class: "soft", text: "(left out)" });
  const [name, dtype, shape, bytes] = view.graph.values[number];
  const [typeName, type] = view.method.dtypes[dtype];
  const told = [typeName || "type unknown", view.method.texts[shape], bytes === undefined ? "" : `weight, ${bytesText(bytes)}`];
  const item = make("li", { class: type },
    make("span", { class: "name", text: name || "(unnamed)" }),
    make("span", { class: "soft", text: told.filter(Boolean).join(" · ") }));
  const ends = maker < 0 ? view.makers.get(number) ?? [] : view.readers.get(number) ?? [];
  for (const other of ends.filter((end) => end !== self).slice(0, 12)) {
    const node = view.graph.nodes[other];
    item.append(make("button", {
      class: "link", type: "button", on: { click: () => { view.select(other, true); view.panel.focus(); } },
      text: `${maker < 0 ? "from" : "to"} ${node.kind ?? view.operator(node)} ${node.name}`,
    }));
  }
  return item;
}

/** A measured value beside its limit, as a bar that is full at the limit. */
function gauge(measured, limit) {
  const share = shareOf([0, 0, 0, 0, measured, limit]);
  const told = `measured ${numberText(measured)}` + (limit === null ? "" : `, limit ${numberText(limit)}`);
  if (share === null) return make("p", { text: told });
  const fill = make("i", { class: share > 1 ? "over" : "" });
  fill.style.width = `${Math.min(1, share) * 100}%`;
  const percent = share > 100 ? `${numberText(share)} times it` : `${numberText(share * 100)} %`;
  return make("div", {}, make("p", { text: `${told} (${percent})` }), make("div", { class: "gauge" }, fill));
}

function numberText(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);
}

function bytesText(count) {
  if (count < 1000) return `${count} B`;
  const at = Math.min(3, Math.floor(Math.log10(count) / 3));
  return `${(count / 1000 ** at).toFixed(1)} ${["B", "kB", "MB", "GB"][at]}`;
}

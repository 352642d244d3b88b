// What is known of a node, beside the graph. Texts only ever become text nodes.

/** Create an element: its text, attributes, and what is within it. */
function createElement(tag, { text, on, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on ?? {})) element.addEventListener(name, listener);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Fill the panel with what is known of a node. */
function showDetails(panel, view, i) {
  const { method, graph, facts } = view, node = graph.nodes[i];
  const text = (number) => method.texts[number];
  const parts = [
    createElement("h3", { text: node.name || "(unnamed)" }),
    createElement("p", { class: "operator", text: node.kind ? KINDS[node.kind] : view.operator(node, true) }),
  ];
  for (const [j, number] of (node.opens ?? []).entries()) {
    const { title, count } = method.graphs[number];
    parts.push(createElement("button", {
      class: "open", type: "button", text: `Open ${title}: ${count} ${count === 1 ? "node" : "nodes"}`,
      on: { click: () => { view.open(number, i); panel.focus(); } }, "data-open": j,
    }));
  }
  if (facts[i].bytes) parts.push(createElement("p", { text: `Weights: ${bytesText(facts[i].bytes)}` }));
  for (const [title, numbers] of [["Reads", node.in], ["Reads within", node.captured], ["Computes", node.out]]) {
    if (!numbers?.length) continue;
    const list = createElement("ul", { class: "values" });
    for (const number of numbers) list.append(valueItem(view, number, title === "Computes" ? i : -1, i));
    parts.push(createElement("h4", { text: title }), list);
  }
  if (node.decisions) parts.push(createElement("h4", { text: "Decisions" }));
  for (const [pass, decision, by, reason, measured, limit, error, about] of node.decisions ?? []) {
    const shown = createElement("div", { class: "decision" },
      createElement("p", {}, createElement("b", { text: text(decision) }), ` ${text(pass)}, by ${text(by) || "itself"}`));
    const word = text(decision).split(",")[0];
    if (DECIDED.includes(word)) shown.classList.add(`decided-${word}`);
    if (about !== undefined) shown.append(createElement("p", { class: "soft", text: `about ${text(about)}` }));
    if (text(reason)) shown.append(createElement("p", { text: text(reason) }));
    if (measured !== undefined && measured !== null) shown.append(gauge(measured, limit));
    if (error !== undefined && error !== null) {
      shown.append(createElement("p", { text: `error ${numberText(error)} of the largest element` }));
    }
    parts.push(shown);
  }
  panel.replaceChildren(...parts);
}

const KINDS = { input: "input of the graph", output: "output of the graph", captured: "value from outside" };

function valueItem(view, number, maker, self) {
  if (number < 0) return createElement("li", { class: "soft", text: "(left out)" });
  const [name, dtype, shape, bytes] = view.graph.values[number];
  const [typeName, type] = view.method.dtypes[dtype];
  const description = [typeName || "type unknown", view.method.texts[shape], bytes === undefined ? "" : `weight, ${bytesText(bytes)}`];
  const item = createElement("li", { class: type },
    createElement("span", { class: "name", text: name || "(unnamed)" }),
    createElement("span", { class: "soft", text: description.filter(Boolean).join(" · ") }));
  const ends = maker < 0 ? view.makers.get(number) ?? [] : view.readers.get(number) ?? [];
  for (const other of ends.filter((end) => end !== self).slice(0, 12)) {
    const node = view.graph.nodes[other];
    item.append(createElement("button", {
      class: "link", type: "button", on: { click: () => { view.select(other, true); view.panel.focus(); } },
      text: `${maker < 0 ? "from" : "to"} ${node.kind ?? view.operator(node)} ${node.name}`,
    }));
  }
  return item;
}

/** A measured value beside its limit, as a bar that is full at the limit. */
function gauge(measured, limit) {
  const share = shareOf([0, 0, 0, 0, measured, limit]);
  const description = `measured ${numberText(measured)}` + (limit === null ? "" : `, limit ${numberText(limit)}`);
  if (share === null) return createElement("p", { text: description });
  const fill = createElement("i", { class: share > 1 ? "over" : "" });
  fill.style.width = `${Math.min(1, share) * 100}%`;
  const percent = share > 100 ? `${numberText(share)} times it` : `${numberText(share * 100)} %`;
  return createElement("div", {}, createElement("p", { text: `${description} (${percent})` }), createElement("div", { class: "gauge" }, fill));
}

function numberText(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);
}

function bytesText(count) {
  if (count < 1000) return `${count} B`;
  const at = Math.min(3, Math.floor(Math.log10(count) / 3));
  return `${(count / 1000 ** at).toFixed(1)} ${["B", "kB", "MB", "GB"][at]}`;
}

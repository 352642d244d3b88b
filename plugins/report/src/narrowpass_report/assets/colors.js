// Which colour a node has, by what the reader chose. The colours themselves are in the style sheet.

const PRECISIONS = [
  ["float64", "float64"], ["float32", "float32"], ["float16", "float16"],
  ["bfloat16", "bfloat16"], ["narrow8", "8 bits or fewer"], ["other", "integers, others"],
  ["unknown", "type unknown"],
];
const DECIDED = ["green", "gray", "red"];
const RANGES = [0.01, 0.1, 0.5, 1];
const RANGE_NAMES = ["below 1 % of the limit", "1 to 10 %", "10 to 50 %", "50 to 100 %", "over the limit"];
const ERRORS = [1e-5, 1e-4, 1e-3, 1e-2];
const ERROR_NAMES = ["error up to 10⁻⁵", "to 10⁻⁴", "to 10⁻³", "to 10⁻²", "above 10⁻²"];
const SIZES = [0, 1e3, 1e4, 1e5, 1e6, 1e7];
const SIZE_NAMES = ["no weights", "below 1 kB", "1 to 10 kB", "10 to 100 kB", "0.1 to 1 MB", "1 to 10 MB", "10 MB or more"];

/** What is known of a node for its colours, by what to colour by. */
function classify(method, graph, node) {
  const value = graph.values[(node.kind === "output" ? node.in : node.out)[0]];
  const decisions = node.decisions ?? [];
  const words = decisions.filter((row) => row.length < 8).map((row) => method.texts[row[1]]);
  const color = words.map((text) => text.split(",")[0]).filter((word) => DECIDED.includes(word)).pop();
  const shares = decisions.map(shareOf).filter((share) => share !== null);
  const bytes = (node.in ?? []).reduce((sum, i) => sum + (graph.values[i]?.[3] ?? 0), 0);
  return {
    type: value ? method.dtypes[value[1]][1] : "unknown",
    color: color ?? null,
    decision: color ?? words.pop() ?? null,
    share: shares.length ? Math.max(...shares) : null,
    error: decisions.reduce((worst, row) => (typeof row[6] === "number" ? Math.max(worst ?? 0, row[6]) : worst), null),
    bytes,
  };
}

/** How much of its limit a measured value is, of a decision. */
function shareOf(row) {
  if (typeof row[4] === "string") return row[4] === "nan" ? null : Infinity;
  if (typeof row[4] !== "number" || typeof row[5] !== "number" || row[5] === 0) return null;
  return Math.abs(row[4] / row[5]);
}

/** Ways to colour: each returns a node's class, and the classes with their colours and names. */
const MODES = {
  precision: {
    label: "precision",
    of: (facts) => facts.type,
    entries: () => PRECISIONS.map(([key, name]) => [key, `--${key}`, name]),
  },
  decision: {
    label: "decision",
    of: (facts) => facts.decision ?? "",
    entries: (all) => {
      const others = [...new Set(all.map((f) => f.decision).filter((d) => d && !DECIDED.includes(d)))].sort();
      return [
        ...DECIDED.map((word) => [word, `--decided-${word}`, word]),
        ...others.map((word, i) => [word, `--extra-${i % 4}`, word]),
        ["", "--unknown", "none"],
      ];
    },
  },
  range: {
    label: "measured / limit",
    of: (facts) => (facts.share === null ? "none" : RANGES.filter((r) => facts.share > r).length),
    entries: () => [
      ...RANGE_NAMES.map((name, i) => [i, i < 4 ? `--step-${i + 1}` : "--over", name]),
      ["none", "--unknown", "not measured"],
    ],
  },
  error: {
    label: "error on data",
    of: (facts) => (facts.error === null ? "none" : ERRORS.filter((e) => facts.error > e).length),
    entries: () => [
      ...ERROR_NAMES.map((name, i) => [i, i < 4 ? `--step-${i + 1}` : "--over", name]),
      ["none", "--unknown", "not measured"],
    ],
  },
  bytes: {
    label: "weight bytes",
    of: (facts) => (facts.bytes ? SIZES.filter((size) => facts.bytes >= size).length : 0),
    entries: () => SIZE_NAMES.map((name, i) => [i, i ? `--step-${i - 1}` : "--unknown", name]),
  },
};

/** The colours of the style sheet, as they are now: they differ between light and dark. */
class Palette {
  constructor(element) {
    this.style = getComputedStyle(element);
    this.known = new Map();
  }

  get(name) {
    if (!this.known.has(name)) this.known.set(name, this.style.getPropertyValue(name).trim());
    return this.known.get(name);
  }

  /** Black or white, whichever can be read on a colour. */
  on(color) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#111111" : "#ffffff";
  }
}

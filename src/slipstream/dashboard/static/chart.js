// Pictures over uPlot: axes with units, the colours of the page, a keyboard's cursor, and words where there is no data yet.
"use strict";
const PALETTE = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a8578a", "#b07800", "#2b8cc4", "#5b616b", "#7a4fbf"],
  dark: ["#6db8e8", "#f0894a", "#3ecf9f", "#e29cc4", "#f2bd4b", "#9fd3f2", "#b5b9c1", "#bb9cf0"],
};
const DARK = matchMedia("(prefers-color-scheme: dark)");
const colour = (k) => PALETTE[DARK.matches ? "dark" : "light"][k % 8];
const own = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function el(tag, props = {}, ...kids) {  // texts are set as text: nothing of a run or study becomes markup
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) one.addEventListener(name.slice(2), value);
    else if (name === "class") one.className = value;
    else if (value !== null && value !== undefined && value !== false) one.setAttribute(name, value === true ? "" : value);
  }
  one.append(...kids.flat().filter((kid) => kid !== null && kid !== undefined));
  return one;
}
const finite = (value) => typeof value === "number" && Number.isFinite(value);
function number(value) {
  if (!finite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e3) return Math.round(value).toLocaleString("en");
  return size > 0 && size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
}
function short(value) {  // on axes
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (size >= unit) return `${+(value / unit).toPrecision(4)}${name}`;
  return size > 0 && size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(6));
}
function clock(seconds) {
  if (!finite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds)), two = (part) => String(part).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

function hours(u, at) {  // of a time axis, in the browser's zone
  const span = u.scales.x.max - u.scales.x.min, form = span < 300 ? "{HH}:{mm}:{ss}" : span < 172800 ? "{HH}:{mm}" : "{MM}-{DD} {HH}:{mm}";
  return at.map((x) => uPlot.fmtDate(form)(new Date(1000 * x)));
}

const CHARTS = new Set();
class Chart {
  // how: x and y (what the axes say, with units), time, log, ticks (names of x), marks (() => x of upright lines),
  // height, legend, range (of y), pick (called with the index of a point that was chosen)
  constructor(parent, title, how = {}) {
    this.how = { x: "", y: "", legend: true, ...how, height: how.height ?? 170 };
    this.holder = el("div", { tabindex: 0, role: "img" });
    this.none = el("p", { class: "none" }, "no data yet");
    this.title = title;
    parent.append(this.box = el("section", { class: "chart" }, el("h3", {}, title), this.none, this.holder));
    this.holder.hidden = true;
    this.holder.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.fit()).observe(this.box);
    CHARTS.add(this);
  }
  set(xs, series) {  // series: {label, values, kind: line | points | step, colour, width}
    const data = [xs, ...series.map((one) => one.values)];
    const some = series.some((one) => one.values.some(finite));
    this.none.hidden = some; this.holder.hidden = !some;
    this.last = [xs, series];
    if (!some) return;
    const shape = JSON.stringify(series.map((one) => [one.label, one.kind, one.colour, one.width]).concat([this.how.x, this.how.log]));
    if (!this.plot || shape !== this.shape) this.draw(data, series); else this.plot.setData(data);
    this.shape = shape;
    const told = series.slice(0, 6).map((one) => `${one.label} ${number(one.values.findLast(finite))}`);
    this.holder.setAttribute("aria-label", `${this.title}; ${this.how.y} over ${this.how.x}; last: ${told.join(", ")}`);
  }
  draw(data, series) {
    this.plot?.destroy();
    const how = this.how, font = "12px system-ui, sans-serif", ink = own("--ink"), line = own("--line");
    const axis = (label, more) => ({ label, stroke: ink, font, labelFont: font, labelSize: 18, grid: { stroke: line, width: 1 },
      ticks: { stroke: line, width: 1 }, ...more });
    const names = how.ticks && { values: (u, at) => at.map((x) => (Number.isInteger(x) ? how.ticks[x] ?? "" : "")), splits: () => how.ticks.map((_, k) => k) };
    const flat = (u, low, high) => {  // a curve that does not move has an axis, too
      if (how.range) return how.range;
      if (low === null) return [0, 1];
      const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
      return [low - room, high + room];
    };
    const ends = (u, low, high) => (how.ticks ? [-0.5, how.ticks.length - 0.5] : low === high ? [low - (Math.abs(low) || 1) * 0.05, high + (Math.abs(high) || 1) * 0.05] : [low, high]);
    this.plot = new uPlot({
      width: Math.max(200, this.box.clientWidth), height: how.height,
      scales: { x: how.log ? { time: false, distr: 3 } : { time: !!how.time, range: ends }, y: { range: flat } },
      axes: [axis(how.x, { size: 34, space: 68, ...(names || (how.time ? { values: hours } : { values: (u, at) => at.map((x) => (x === null ? "" : short(x))) })) }),
        axis(how.y, { size: 60, values: (u, at) => at.map(short) })],
      legend: { show: how.legend && series.length <= 10 }, cursor: { points: { size: 7 } },
      series: [{ label: how.time ? "time" : how.x.split(",")[0], value: how.time ? "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" : (u, x) => (how.ticks ? how.ticks[x] ?? "–" : number(x)) },
        ...series.map((one, k) => {
          const stroke = one.colour ?? colour(k);
          return { label: one.label, stroke, width: one.width ?? 1.6, spanGaps: true, value: (u, y) => number(y),
            points: one.kind === "points" ? { show: true, size: 5, fill: stroke } : { show: one.values.filter(finite).length < 30, size: 4 },
            paths: one.kind === "points" ? () => null : one.kind === "step" ? uPlot.paths.stepped({ align: 1 }) : undefined };
        })],
      hooks: { draw: [(u) => this.upright(u)] },
    }, data, this.holder);
    if (how.pick) this.plot.over.addEventListener("click", () => this.picked());
  }
  upright(u) {  // lines of rungs
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = own("--soft"); ctx.setLineDash([4, 4]);
    for (const x of this.how.marks?.() ?? []) {
      const at = u.valToPos(x, "x", true);
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.beginPath(); ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke();
    }
    ctx.restore();
  }
  picked() {  // the point nearest to the mouse: several may have one x
    const u = this.plot, { left, top } = u.cursor, away = (k, y) => Math.hypot(u.valToPos(u.data[0][k], "x") - left, u.valToPos(y, "y") - top);
    const all = this.last[1].filter((one) => one.kind === "points").flatMap((one) => one.values.map((y, k) => [finite(y) ? away(k, y) : Infinity, k]));
    if (all.length) this.how.pick?.(all.reduce((a, b) => (b[0] < a[0] ? b : a))[1]);
  }
  key(event) {  // arrows move the cursor, plus and minus zoom, 0 shows all, Enter chooses
    const plot = this.plot, last = plot?.data[0].length - 1;
    if (!plot || last < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 }[event.key];
    if (step) {
      const at = this.at = Math.min(last, Math.max(0, (this.at ?? (step > 0 ? -1 : last + 1)) + step));
      const values = plot.data.slice(1).map((one) => one[at]).filter(finite);
      plot.setCursor({ left: plot.valToPos(plot.data[0][at], "x"), top: values.length ? plot.valToPos(values[0], "y") : 0 });
    } else if (event.key === "Enter") this.how.pick?.(this.at ?? last);
    else if ("+-0".includes(event.key)) {
      const { min, max } = plot.scales.x, middle = plot.data[0][this.at] ?? (min + max) / 2;
      const half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2), ends = [plot.data[0][0], plot.data[0][last]];
      if (event.key === "0" || half * 2 >= ends[1] - ends[0]) plot.setScale("x", { min: ends[0], max: ends[1] });
      else plot.setScale("x", { min: Math.max(ends[0], middle - half), max: Math.min(ends[1], middle + half) });
    } else return;
    event.preventDefault();
  }
  fit() { if (this.plot && this.box.clientWidth) this.plot.setSize({ width: Math.max(200, this.box.clientWidth), height: this.how.height }); }
  remove() { this.plot?.destroy(); this.box.remove(); CHARTS.delete(this); }
}
DARK.addEventListener("change", () => { for (const one of CHARTS) { one.shape = null; if (one.last) one.set(...one.last); } });

class Rows {  // a table that grows, by member; thinned once it is long
  constructor() { this.columns = []; this.members = new Map(); }
  add({ columns, rows }, split = null) {
    this.columns = columns;
    const place = columns.indexOf("member"), of = columns.indexOf("split");
    for (const row of rows) {
      const key = split && of >= 0 && row[of] !== "train" ? `${row[place]} ${row[of]}` : row[place] ?? 0;
      if (!this.members.has(key)) this.members.set(key, []);
      const own = this.members.get(key);
      own.push(row);
      if (own.length > 1000) this.members.set(key, own.filter((_, k) => k % 2 || k === own.length - 1));
    }
  }
  clear() { this.members.clear(); }
  curves(column, x = "steps") {  // [xs, one list of values a member], and the members
    const at = this.columns.indexOf(x), of = this.columns.indexOf(column), keys = [...this.members.keys()].sort((a, b) => (a > b ? 1 : -1));
    if (at < 0 || of < 0 || !keys.length) return [[[]], []];
    const each = keys.map((key) => this.members.get(key).filter((row) => finite(row[at]) && finite(row[of])));
    return [uPlot.join(each.map((rows) => [rows.map((row) => row[at]), rows.map((row) => row[of])])), keys];
  }
  mean(column, x = "steps") {  // over members, where several have a value
    const [[xs, ...each], keys] = this.curves(column, x);
    const means = xs.map((_, k) => { const there = each.map((one) => one[k]).filter(finite); return there.reduce((a, b) => a + b, 0) / there.length; });
    return keys.length ? [xs, means] : [[], []];
  }
}

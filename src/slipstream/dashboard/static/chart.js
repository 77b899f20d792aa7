// Pictures over uPlot: axes with units, a keyboard's cursor, and words where there is no data yet.
import { el, none } from "./elements.js";
import { finite, number, short } from "./numbers.js";
import { IN_THE_DARK, colour, own } from "./palette.js";

export const CHARTS = new Set();
const FONT = "12px system-ui, sans-serif";
const MINUTE = 60, HOUR = 3600, DAY = 86400;
const MARKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800].concat(  // seconds between labels
  [1, 2, 3, 6, 12, 24, 48, 120, 240, 720].map((hours) => HOUR * hours));
const utc = (second) => uPlot.tzDate(new Date(1000 * second), "Etc/UTC");  // as in all tables
const ZOOMS = { "+": 0.5, "-": 2, 0: Infinity };
const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 };

function hours(u, at) {  // of a time axis
  const span = u.scales.x.max - u.scales.x.min;
  const form = span < 300 ? "{HH}:{mm}:{ss}" : span < 2 * DAY ? "{HH}:{mm}" : "{MM}-{DD} {HH}:{mm}";
  return at.map((x) => uPlot.fmtDate(form)(utc(x)));
}

function axis(label, more) {
  const stroke = own("--line");
  return { label, stroke: own("--ink"), font: FONT, labelFont: FONT, labelSize: 18,
    grid: { stroke, width: 1 }, ticks: { stroke, width: 1 }, ...more };
}

export class Chart {
  // how: x and y (what the axes say, with units), time, log, ticks (names of x), marks (() => x of
  // upright lines), until (() => where x ends), height, legend, range (of y), pick (called with the
  // index of a chosen point)
  constructor(parent, title, how = {}) {
    this.how = { x: "", y: "", legend: true, height: 170, ...how };
    this.holder = el("div", { tabindex: 0, role: "img", hidden: true });
    this.none = none();
    this.title = el("h3", {}, title);
    parent.append(this.box = el("section", { class: "chart" }, this.title, this.none, this.holder));
    this.holder.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.fit()).observe(this.box);
    CHARTS.add(this);
  }
  set(xs, series) {  // series: {label, values, kind: line | points | step, colour, width}
    const some = series.some((one) => one.values.some(finite));
    this.none.hidden = some;
    this.holder.hidden = !some;
    this.last = [xs, series];
    if (!some) return;
    const data = [xs, ...series.map((one) => one.values)];
    const looks = series.map((one) => [one.label, one.kind, one.colour, one.width]);
    const shape = JSON.stringify([looks, this.how.x, this.how.y, this.how.log, this.how.ticks]);
    if (!this.plot || shape !== this.shape) this.draw(data, series);
    else this.plot.setData(data);
    this.shape = shape;
    const newest = (one) => `${one.label} ${number(one.values.findLast(finite))}`;
    const last = series.slice(0, 6).map(newest).join(", "), { x, y } = this.how;
    const told = `${this.title.textContent}; ${y} over ${x}; last: ${last}`;
    this.holder.setAttribute("aria-label", told);
  }
  draw(data, series) {
    this.plot?.destroy();
    const { how } = this;
    this.plot = new uPlot({
      width: this.width(), height: how.height, tzDate: utc,
      padding: [null, how.time ? 28 : null, null, null],  // room for half of the last label
      scales: { x: this.across(), y: { range: (u, low, high) => this.upwards(low, high) } },
      axes: [axis(how.x, { size: 34, space: 68, ...this.below() }),
        axis(how.y, { size: 60, space: 22, values: (u, at) => at.map(short) })],
      legend: { show: how.legend && series.length <= 10 }, cursor: { points: { size: 7 } },
      series: [{ label: how.x.split(",")[0], value: this.told() },
        ...series.map((one, k) => this.curve(one, one.colour ?? colour(k)))],
      hooks: { draw: [(u) => this.upright(u)] },
    }, data, this.holder);
    if (how.pick) this.plot.over.addEventListener("click", () => this.picked());
  }
  across() {  // the scale of x
    if (this.how.log) return { time: false, distr: 3 };
    const { ticks, time = false } = this.how;
    const range = (u, low, high) => {
      if (ticks) return [-0.5, ticks.length - 0.5];
      const end = this.how.until?.(), xs = u.data[0];
      if (end > high && low === xs[0] && high === xs.at(-1)) return [0, end];
      if (low < high && u.data[0].length > 1) return [low, high];
      const one = u.data[0][0] ?? 0;  // uPlot's own range of a single point may begin at 0
      const room = time ? MINUTE : Math.abs(one) * 0.05 || 1;
      return [one - room, one + room];
    };
    return { time, range };
  }
  upwards(low, high) {  // the range of y: a curve that does not move has an axis, too
    if (this.how.range) return this.how.range;
    if (low === null) return [0, 1];
    const moves = high - low > Math.abs(high) / 1000;
    const room = moves ? (high - low) * 0.06 : Math.abs(high) * 0.05 || 1;
    return [low - room, high + room];
  }
  below() {  // what stands at the ticks of x
    const { ticks, time } = this.how;
    const wide = (u, k, low, high) => (high - low < 2 * DAY ? 68 : 100);
    if (time) return { values: hours, incrs: MARKS, space: wide };
    if (!ticks) return { values: (u, at) => at.map((x) => (x === null ? "" : short(x))) };
    const values = (u, at) => at.map((x) => (Number.isInteger(x) ? ticks[x] ?? "" : ""));
    return { values, splits: () => ticks.map((_, k) => k) };
  }
  told() {  // x at the cursor
    const { ticks, time } = this.how;
    if (time) return "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}";
    return (u, x) => (ticks ? ticks[x] ?? "–" : number(x));
  }
  curve(one, stroke) {
    const alone = one.kind === "points", few = one.values.filter(finite).length < 30;
    const paths = { points: () => null, step: uPlot.paths.stepped({ align: 1 }) }[one.kind];
    const points = alone ? { show: true, size: 5, fill: stroke } : { show: few, size: 4 };
    return { label: one.label, stroke, width: one.width ?? 1.6, spanGaps: true, points, paths,
      value: (u, y) => number(y) };
  }
  upright(u) {  // lines of rungs
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = own("--soft");
    ctx.setLineDash([4, 4]);
    for (const x of this.how.marks?.() ?? []) {
      const at = u.valToPos(x, "x", true);
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
  picked() {  // the point nearest to the mouse: several may have one x
    const u = this.plot, { left, top } = u.cursor;
    const away = (x, y) => Math.hypot(u.valToPos(x, "x") - left, u.valToPos(y, "y") - top);
    const far = (y, k) => [finite(y) ? away(u.data[0][k], y) : Infinity, k];
    const points = this.last[1].filter((one) => one.kind === "points");
    const all = points.flatMap((one) => one.values.map(far));
    if (all.length) this.how.pick(all.reduce((a, b) => (b[0] < a[0] ? b : a))[1]);
  }
  key(event) {  // arrows move the cursor, plus and minus zoom, 0 shows all, Enter chooses
    const last = this.plot?.data[0].length - 1;
    if (!(last >= 0) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in STEPS) this.move(STEPS[event.key], last);
    else if (event.key in ZOOMS) this.zoom(ZOOMS[event.key], last);
    else if (event.key === "Enter") this.how.pick?.(this.at ?? last);
    else return;
    event.preventDefault();
  }
  move(step, last) {
    const { plot } = this, from = this.at ?? (step > 0 ? -1 : last + 1);
    const at = this.at = Math.min(last, Math.max(0, from + step));
    const y = plot.data.slice(1).map((one) => one[at]).find(finite);
    const top = y === undefined ? 0 : plot.valToPos(y, "y");
    plot.setCursor({ left: plot.valToPos(plot.data[0][at], "x"), top });
  }
  zoom(by, last) {
    const [xs] = this.plot.data, { min, max } = this.plot.scales.x;
    const middle = xs[this.at] ?? (min + max) / 2, half = ((max - min) / 2) * by;
    const all = half * 2 >= xs[last] - xs[0];
    const near = { min: Math.max(xs[0], middle - half), max: Math.min(xs[last], middle + half) };
    this.plot.setScale("x", all ? { min: xs[0], max: xs[last] } : near);
  }
  width() { return Math.max(200, this.box.clientWidth); }
  fit() {
    if (!this.plot || !this.box.clientWidth) return;
    this.plot.setSize({ width: this.width(), height: this.how.height });
  }
  remove() {
    this.plot?.destroy();
    this.box.remove();
    CHARTS.delete(this);
  }
}

IN_THE_DARK.addEventListener("change", () => {
  for (const one of CHARTS) {
    one.shape = null;
    if (one.last) one.set(...one.last);
  }
});

export const columns = (rows, x = 0, y = 1) =>  // of a curve
  [rows.map((row) => row[x]), rows.map((row) => row[y])];

export class Charts extends Map {  // by key: made when first asked for; words where there is none
  constructor(parent) {
    super();
    this.parent = parent;
    parent.append(this.none = none());
  }
  of(key, title, how) {
    if (!this.has(key)) this.set(key, new Chart(this.parent, title, how));
    this.none.hidden = true;
    Object.assign(this.get(key).how, how);
    return this.get(key);
  }
  keep(keys) {  // and no others
    for (const [key, chart] of this) {
      if (keys.includes(key)) continue;
      chart.remove();
      this.delete(key);
    }
    this.none.hidden = this.size > 0;
  }
}

// Running trials: a chart each, with a curve for every fold.
import { Charts, columns } from "./chart.js";
import { el, fill, section, soft } from "./elements.js";
import { clock, finite } from "./numbers.js";
import { colour } from "./palette.js";

const MOST = 24;  // pictures
const POINTS = 400;  // a curve
const BEFORE = 12;  // points, over which a pace is measured

function secondsLeft(points, budget) {
  const now = points.at(-1), then = points[Math.max(0, points.length - BEFORE)];
  const pace = (now[0] - then[0]) / (now[2] - then[2]);
  return pace > 0 && budget ? Math.max(0, budget - now[0]) / pace : NaN;
}

export class UnderWay {
  members = new Map();  // by slot; who was heard of last is the last
  body = section("Running trials: recent training score by fold");
  legend = this.body.appendChild(soft(""));
  charts = new Charts(this.body.appendChild(el("div", { class: "grid" })));

  add(rows) {
    for (const [phase, trial, repeat, fold, step, value, at] of rows) {
      const key = `${phase} ${trial} ${repeat} ${fold}`;
      const one = this.members.get(key) ?? { phase, trial, repeat, fold, points: [] };
      this.members.delete(key);
      this.members.set(key, one);
      const last = one.points.at(-1);
      if (!last || step > last[0]) one.points.push([step, value, at]);
      if (one.points.length > POINTS) one.points = one.points.filter((_, k) => k % 2);
    }
  }
  clear() { this.members.clear(); }

  draw({ works, running }, asked, trials) {
    const wanted = (works ? running ?? [] : []).map((one) => one.trial);
    const known = [...new Set(wanted)].filter((one) => one !== undefined);
    this.charts.keep(known);
    this.charts.none.textContent = works ? "no data yet" : "No process works on it.";
    const dot = (fold) => Object.assign(el("b", {}, `● fold ${fold} `),
      { style: `color: ${colour(fold)}` });
    const members = [...this.members.values()], phase = members.at(-1)?.phase;
    const now = members.filter((one) => one.phase === phase).map((one) => one.fold);
    fill(this.legend, [...new Set(now)].sort((a, b) => a - b).map(dot));
    for (const trial of known.slice(0, MOST)) {
      const folds = members.filter((one) => one.trial === trial && one.phase === phase);
      const budget = trials.get(trial)?.params?.["training.total_steps"] ?? asked.steps;
      this.drawTrial(trial, folds.sort((a, b) => a.fold - b.fold), budget, asked.rungs ?? []);
    }
  }
  drawTrial(trial, folds, budget, rungs) {
    const marks = () => rungs.map((share) => share * budget);
    const how = { x: "steps of a member", y: "score", height: 150, legend: false, marks,
      until: () => budget };
    const chart = this.charts.of(trial, "", how);
    const left = folds.map(({ points }) => secondsLeft(points, budget)).filter(finite);
    const told = left.length ? `${clock(Math.max(...left))} left` : "time left unknown";
    const name = ({ fold, repeat }) => `fold ${fold}${repeat ? `, seed ${repeat}` : ""}`;
    const [xs, ...all] = folds.length ? uPlot.join(folds.map((one) => columns(one.points))) : [[]];
    chart.title.textContent = `Trial ${trial}: ${told}`;
    chart.set(xs, folds.map((one, k) =>
      ({ label: name(one), values: all[k], colour: colour(one.fold) })));
  }
}

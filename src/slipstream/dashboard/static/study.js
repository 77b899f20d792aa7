// The page of a study.
import { Chart, Charts } from "./chart.js";
import { el, fill, grid, none, progress, section, soft, state, tiles } from "./elements.js";
import { text, upper, watch } from "./folder.js";
import { heatMap } from "./heatmap.js";
import { clock, finite, number, short } from "./numbers.js";
import { colour, own } from "./palette.js";
import { ID } from "./stream.js";
import { UnderWay } from "./under_way.js";

const ENDED = ["complete", "pruned", "inactive", "violating", "failed"];
const COLOURS = { complete: 0, pruned: 6, inactive: 4, violating: 3 };  // of those with a score
const SETTINGS = 16, BEST = 25, FAILED = 50, SHARES = 15;  // shown at most
const ENOUGH = 20;  // trials, to ask what made them differ
const NEWER = 1.25;  // so many times as many, to ask again

const byEnd = (trials) => trials.sort((a, b) => a.ended - b.ended);
const took = (trial) => trial.ended - trial.started;
const scored = (trial) => trial.ended && trial.state !== "failed" && finite(trial.score);

function dots(trials) {  // a series for each kind of end
  const values = (kind) => trials.map((one) => (one.state === kind ? one.score : null));
  const some = ([kind]) => trials.some((one) => one.state === kind);
  return Object.entries(COLOURS).filter(some).map(([kind, k]) =>
    ({ label: kind, kind: "points", colour: colour(k), values: values(kind) }));
}

function bestSoFar(trials) {
  let high = null;
  return trials.map(({ state: kind, score }) => {
    if (kind === "complete" && (high === null || score > high)) high = score;
    return high;
  });
}

function description(trial) {
  const rungs = trial.rungs.map(([at, value]) => `${short(at)}: ${number(value)}`).join(", ");
  const facts = [state(trial.state), number(trial.score), trial.ended ? clock(took(trial)) : "–",
    trial.folds.map(number).join(", "), rungs, trial.reason];
  const names = ["state", "score", "took", "folds", "at rungs (steps: score)", "reason"];
  const words = (value) => (finite(value) ? number(value) : String(value));
  const params = Object.entries(trial.params).map(([name, value]) => [name, words(value)]);
  return [el("h3", {}, `Trial ${trial.number}`), grid(names, [facts]),
    grid(["setting", "value"], params)];
}

function counted(trials, status, asked, best) {  // the tiles
  const count = (kind) => trials.filter((one) => one.state === kind).length;
  const kinds = ENDED.filter((kind) => kind !== "violating" || count(kind));
  const became = [...kinds, "running"].map((kind) => `${count(kind)} ${kind}`).join(", ");
  const seconds = byEnd(trials.filter((one) => one.ended && one.state !== "failed")).map(took);
  const median = [...seconds].sort((a, b) => a - b)[Math.floor(seconds.length / 2)];
  const { works, trials_per_hour: rate, total, completed } = status, b = status.best ?? {};
  const search = status.unit === "trials" && rate ? ((total - completed) / rate) * 3600 : null;
  const range = finite(b.low) ? `, 95 %: ${number(b.low)} to ${number(b.high)}` : "";
  return tiles([
    ["Trials", `${trials.length - count("running")} of ${asked.n_trials ?? "?"}`, became],
    ["Trials per hour", number(rate)],
    ["A trial takes", clock(median), `median; the last ${clock(seconds.at(-1))}`],
    ...(works ? [["Search ends in", clock(search)],
      ["Study ends in", clock(status.eta), "with confirmation and final training"]] : []),
    ["Best", number(b.score ?? best?.score),
      best || b.trial !== undefined ? `trial ${b.trial ?? best.number}${range}` : "no data yet"],
  ]);
}

function outcome(result, openings) {  // confirmation and hold-out
  const times = openings === 1 ? "once" : `${openings} times`;
  const opened = openings ? `The hold-out was opened ${times}.`
    : "The hold-out is closed: it was never evaluated.";
  const priceless = "Environments without prices have no hold-out.";
  const row = (one) => [String(one.trial), number(one.lcb), number(one.value),
    [one.seeds ?? []].flat().map(number).join(", ")];
  const table = grid(["trial", "lower bound", "value", "fresh seeds"],
    (result?.candidates ?? []).map(row),
    "no data yet: the best trials are trained again on fresh seeds after the search");
  const sentences = (result?.sentences ?? []).map((one) => el("p", {}, one));
  return [el("p", {}, result?.market === false ? priceless : opened), sentences, table];
}

async function importances() {
  const answer = await fetch(`/api/importances/${ID}`);
  const told = answer.ok ? Object.entries(await answer.json()).slice(0, SHARES) : [];
  const how = "Importances by PED-ANOVA; pruned trials are included.";
  const row = ([name, part]) => [name, progress(part, name), `${Math.round(100 * part)} %`];
  return [told.length ? soft(how) : null,
    grid(["setting", "share", ""], told.map(row), undefined, { class: "bars" })];
}

function slices(body) {  // settings against score; returns what draws them
  const charts = new Charts(body);
  function draw(name, trials, log) {
    const words = trials.some((one) => !finite(one.params[name]));
    const value = (one) => String(one.params[name]);
    const ticks = words ? [...new Set(trials.map(value))].sort() : null;
    const place = (one) => (words ? ticks.indexOf(value(one)) : one.params[name]);
    const rows = [...trials].sort((a, b) => place(a) - place(b));
    const look = { height: 150, legend: false, ticks, log: log && !words };
    charts.of(name, name, { x: name.split(".").at(-1), y: "score", ...look })
      .set(rows.map(place), dots(rows));
  }
  return (names, trials, log) => {
    for (const name of names) draw(name, trials, log.includes(name));
  };
}

export function study() {
  const told = upper("Study"), counts = section("Trials");
  const scatter = el("div"), detail = el("div", { "aria-live": "polite" });
  const find = ({ target: { value } }) => fill(detail,
    trials.has(+value) ? description(trials.get(+value)) : none("there is no such trial"));
  const asking = el("input", { type: "number", min: 0, onchange: find });
  counts.after(scatter, el("label", {}, "Or any trial by its number: ", asking), detail);
  const underWay = new UnderWay();
  const settings = slices(section("Settings against score", "div", { class: "grid" }));
  const shares = section("Hyperparameter importance");
  const heat = section("Scores by fold, the best trials"), failures = section("Failures");
  const confirm = section("Confirmation and hold-out"), config = section("Config");
  const trials = new Map();
  let status = {}, asked = {}, best = null, openings = 0, order = [], compared = 0, changed = true;

  const history = new Chart(scatter,
    "Score of each trial when it ended; choose a point to see its trial",
    {
      x: "time, UTC", y: "score", time: true, height: 260,
      pick: (k) => order[k] && show(order[k]),
    });
  const show = (trial) => fill(detail, description(trial));
  function choose(trial) {
    show(trial);
    detail.scrollIntoView({ block: "nearest" });
  }
  async function compare() {
    if (order.length < ENOUGH) {
      fill(shares, none(`no data yet: it takes ${ENOUGH} trials with a score`));
    } else if (order.length > compared * NEWER) {
      if (!compared) fill(shares, none("computing"));
      compared = order.length;
      fill(shares, await importances());
    }
  }
  function drawTrials(all) {
    order = byEnd(all.filter(scored));
    const line = { label: "best so far", kind: "step", colour: own("--ink"), width: 1.2 };
    history.set(order.map((one) => one.ended),
      [...dots(order), { ...line, values: bestSoFar(order) }]);
    settings(Object.keys(all[0]?.params ?? {}).slice(0, SETTINGS), order, asked.log ?? []);
    const complete = order.filter((one) => one.state === "complete");
    fill(heat, heatMap(complete.sort((a, b) => b.score - a.score).slice(0, BEST), choose));
    const failed = all.filter((one) => one.state === "failed").slice(-FAILED);
    fill(failures, grid(["trial", "reason"],
      failed.map((one) => [String(one.number), one.reason]), "no trial failed"));
    fill(confirm, outcome(asked.result, openings));
    compare();
  }
  function draw() {
    const all = [...trials.values()];
    underWay.draw(status, asked, trials);
    fill(counts, counted(all, status, asked, trials.get(best)));
    if (changed) drawTrials(all);
    changed = false;
  }
  watch("study", told, (name, facts) => {
    if (name === "status") status = facts;
    else if (name === "members" && !facts.unreadable) underWay.add(facts);
    else if (name === "reset" && facts.part === "members") underWay.clear();
    else if (name === "trials" && facts.rows) {
      for (const one of facts.rows) trials.set(one.number, one);
      ({ best, openings } = facts);
      changed = true;
    } else if (name === "facts") {
      asked = facts;
      changed = true;
      fill(config, text("study.yaml", facts.text));
    }
  }, draw);
}

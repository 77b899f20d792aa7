// The page of several runs over each other, the mean of their members.
import { Charts } from "./chart.js";
import { el, fill, grid, heading, put, section, state } from "./elements.js";
import { Tables, drawnColumns, title, unit } from "./metrics.js";
import { ID, follow } from "./stream.js";

export function compare() {
  heading("Compare");
  const now = el("div");
  put(now);
  const curves = new Charts(section("Learning", "div", { class: "grid wide" }));
  const more = new Charts(section("Updates, episodes and machine", "div", { class: "grid" }));
  const runs = ID.split(",").slice(0, 6).map((id, k) =>
    ({ id, name: `run ${k}`, state: "", is: "", tables: new Tables() }));

  function over(charts, name, y, height, pick) {
    const [xs, ...all] = uPlot.join(runs.map((one) => pick(one.tables)));
    const series = runs.map((one, k) => ({ label: one.name, values: all[k] ?? [] }));
    charts.of(name, name, { x: "steps of a member", y, height }).set(xs, series);
  }
  function draw() {
    const link = (one) => el("a", { href: `/run/${one.id}` }, one.name);
    const rows = runs.map((one) => [link(one), state(one.state), one.is]);
    fill(now, grid(["run", "state", "score is"], rows));
    over(curves, "Score of recent training episodes, mean of members", "score", 260,
      (one) => one.metrics.mean("score"));
    over(curves, "Score in validation, mean of members", "score", 260,
      (one) => one.evaluations.mean("score"));
    over(more, "Speed, all members", "steps/s", 170, (one) => one.metrics.rates());
    const columns = new Set(runs.flatMap((one) => drawnColumns(one.tables.metrics.columns)));
    for (const name of columns) {
      over(more, title(name), unit(name), 170, (one) => one.metrics.mean(name));
    }
  }
  follow("compare", ID, (_, { run, events }) => {
    const one = runs[run];
    for (const [name, facts] of events) {
      if (name === "facts") Object.assign(one, { name: facts.name, is: facts.score_is ?? "" });
      else if (name === "status") one.state = facts.state;
      else one.tables.take(name, facts);
    }
  }, draw);
}

// The page of several runs over each other, the mean of their members.
import { Charts } from "./chart.js";
import { el, fill, grid, heading, put, section, state } from "./elements.js";
import { Rows, drawnColumns, title, unit } from "./metrics.js";
import { ID, follow } from "./stream.js";

export function compare() {
  heading("Compare");
  const now = el("div"), ids = ID.split(","), charts = new Charts();
  put(now);
  const curves = section("Learning", "div", { class: "grid wide" });
  const more = section("Updates, episodes and machine", "div", { class: "grid" });
  const runs = ids.map((id, k) => ({ id, name: `run ${k}`, state: "", is: "",
    metrics: new Rows(), evaluations: new Rows() }));

  function over(parent, name, y, height, pick) {
    const [xs, ...all] = uPlot.join(runs.map(pick));
    const series = runs.map((one, k) => ({ label: one.name, values: all[k] ?? [] }));
    charts.of(name, parent, name, { x: "steps of a member", y, height }).set(xs, series);
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
    const columns = new Set(runs.flatMap((one) => drawnColumns(one.metrics.columns)));
    for (const name of columns) {
      over(more, title(name), unit(name), 170, (one) => one.metrics.mean(name));
    }
  }
  follow("compare", ID, (_, { run, events }) => {
    const one = runs[run];
    for (const [name, facts] of events) {
      if (name === "facts") Object.assign(one, { name: facts.name, is: facts.score_is ?? "" });
      else if (name === "status") one.state = facts.state;
      else if (name === "metrics" && facts.rows) one.metrics.add(facts);
      else if (name === "evaluations" && facts.rows) one.evaluations.add(facts, true);
      else if (name === "reset" && one[facts.part] instanceof Rows) one[facts.part].clear();
    }
  }, draw);
}

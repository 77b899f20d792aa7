// The page of a run.
import { Charts } from "./chart.js";
import { el, fill, grid, none, section } from "./elements.js";
import { upper, watch } from "./folder.js";
import { Tables, drawnColumns, ofMachine, title, unit } from "./metrics.js";
import { short } from "./numbers.js";
import { ID } from "./stream.js";

function clip(name) {
  const src = `/video/${ID}/${encodeURIComponent(name)}`;
  const film = name.endsWith(".mp4") ? el("video", { src, controls: true })
    : el("img", { src, alt: name, class: "film" });
  return el("figure", {}, film, el("figcaption", {}, name));
}

function settings(rows) {  // [name, value, whether it is the default]
  const set = rows.filter(([, , usual]) => !usual).map((row) => row.slice(0, 2));
  const all = rows.map(([name, value, usual]) => [name, value, usual ? "default" : "set"]);
  const differs = el("summary", {}, "Changed settings");
  return [el("details", { open: true }, differs, grid(["setting", "value"], set, "nothing")),
    el("details", {}, el("summary", {}, `All ${rows.length} settings`),
      grid(["setting", "value", ""], all))];
}

function byMember([[steps, ...each], members]) {
  const width = members.length > 10 ? 0.8 : 1.6;
  return [steps, each.map((values, k) => ({ label: `member ${members[k]}`, values, width }))];
}

export function run() {
  const told = upper("Run");
  const curves = new Charts(section("Learning", "div", { class: "grid wide" }));
  const more = new Charts(section("Updates and episodes", "div", { class: "grid" }));
  const machine = new Charts(section("Machine usage", "div", { class: "grid" }));
  const files = section("Checkpoints and videos"), config = section("Config");
  const tables = new Tables(), { metrics, evaluations } = tables;
  let scoreIs = "";

  const chart = (charts, name, y, how) =>
    charts.of(name, name, { x: "steps of a member", y, ...how });
  const learned = (name, rows, column) =>
    chart(curves, `${name}, by member`, (column === "score" && scoreIs) || column, { height: 240 })
      .set(...byMember(rows.curves(column)));
  const used = (name, y, [steps, values]) =>
    chart(machine, name, y, { legend: false }).set(steps, [{ label: y, values }]);

  function draw() {
    learned("Score of recent training episodes", metrics, "score");
    learned("Score in validation", evaluations, "score");
    if (evaluations.columns.includes("rating")) {
      learned("Rating against its own snapshots", evaluations, "rating");
    }
    used("Speed, all members", "steps/s", metrics.rates());
    used(title("cpu_percent"), unit("cpu_percent"), metrics.mean("cpu_percent"));
    for (const name of drawnColumns(metrics.columns)) {
      if (ofMachine(name)) used(title(name), unit(name), metrics.mean(name));
      else chart(more, title(name), unit(name)).set(...byMember(metrics.curves(name)));
    }
  }
  function describe(facts) {
    scoreIs = facts.score_is;
    const steps = facts.checkpoints.map((one) => short(+one.slice(5))).join(", ");
    fill(files, steps ? el("p", {}, `${steps} steps`) : none("no checkpoint yet"),
      facts.videos.map(clip));
    const command = facts.command ? el("p", { class: "mono" }, facts.command) : null;
    fill(config, command, settings(facts.config ?? []));
  }
  draw();
  watch("run", told, (name, facts) => {
    if (name === "facts") describe(facts);
    else tables.take(name, facts);
  }, draw);
}

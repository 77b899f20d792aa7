// The page of a run.
import { Charts } from "./chart.js";
import { el, fill, grid, none, section } from "./elements.js";
import { lower, upper } from "./folder.js";
import { Rows, drawnColumns, ofMachine, title, unit } from "./metrics.js";
import { short } from "./numbers.js";
import { ID, follow } from "./stream.js";

function clip(name) {
  const src = `/video/${ID}/${encodeURIComponent(name)}`;
  const film = name.endsWith(".mp4") ? el("video", { src, controls: true })
    : el("img", { src, alt: name, class: "film" });
  return el("figure", {}, film, el("figcaption", {}, name));
}

function settings(rows) {  // [name, value, whether it is the default]
  const set = rows.filter(([, , usual]) => !usual).map((row) => row.slice(0, 2));
  const all = rows.map(([name, value, usual]) => [name, value, usual ? "default" : "set"]);
  const differs = el("summary", {}, "What differs from the defaults");
  return [el("details", { open: true }, differs, grid(["setting", "value"], set)),
    el("details", {}, el("summary", {}, `All ${rows.length} settings`),
      grid(["setting", "value", ""], all))];
}

function byMember([[steps, ...each], members]) {
  const width = members.length > 10 ? 0.8 : 1.6;
  return [steps, each.map((values, k) => ({ label: `member ${members[k]}`, values, width }))];
}

export function run() {
  const told = upper("Run");
  const curves = section("Learning", "div", { class: "grid wide" });
  const more = section("Updates and episodes", "div", { class: "grid" });
  const machine = section("What it takes of the machine", "div", { class: "grid" });
  const files = section("Checkpoints and videos"), config = section("Config"), said = lower();
  const metrics = new Rows(), evaluations = new Rows(), charts = new Charts();

  const chart = (key, parent, name, y, how) =>
    charts.of(key, parent, name, { x: "steps of a member", y, ...how });
  const score = (key, name) => chart(key, curves, name, "score", { height: 240 });
  const used = (key, name, y) => chart(key, machine, name, y, { legend: false });

  function draw() {
    score("score", "Score of recent training episodes, by member")
      .set(...byMember(metrics.curves("score")));
    score("evaluated", "Score in validation, by member")
      .set(...byMember(evaluations.curves("score")));
    if (evaluations.columns.includes("rating")) {
      const name = "Rating against its own snapshots, by member";
      chart("rating", curves, name, "rating", { height: 240 })
        .set(...byMember(evaluations.curves("rating")));
    }
    const [steps, rates] = metrics.rates();
    used("rate", "Speed, all members", "steps/s").set(steps, [{ label: "steps/s", values: rates }]);
    used("cpu_percent", title("cpu_percent"), unit("cpu_percent"));
    let some = false;
    for (const name of drawnColumns(metrics.columns)) {
      if (ofMachine(name)) {
        const [xs, values] = metrics.mean(name);
        used(name, title(name), unit(name)).set(xs, [{ label: name, values }]);
      } else {
        chart(name, more, title(name), unit(name)).set(...byMember(metrics.curves(name)));
        some = true;
      }
    }
    more.querySelector(":scope > .none")?.remove();
    if (!some) more.append(none());
  }
  function describe(facts) {
    const steps = facts.checkpoints.map((one) => short(+one.slice(5))).join(", ");
    fill(files, steps ? el("p", {}, `${steps} steps`) : none("no checkpoint yet"),
      facts.videos.map(clip));
    const command = facts.command ? el("p", { class: "mono" }, facts.command) : null;
    fill(config, command, settings(facts.config ?? []));
  }
  draw();
  follow("run", ID, (name, facts) => {
    told(name, facts);
    said(name, facts);
    if (name === "facts") describe(facts);
    else if (name === "metrics" && facts.rows) metrics.add(facts);
    else if (name === "evaluations" && facts.rows) evaluations.add(facts, true);
    else if (name === "reset") ({ metrics, evaluations })[facts.part]?.clear();
  }, draw);
}

// The page of a deployment: gates, its paper account beside the rerun, and the kill switch.
import { Charts, columns } from "./chart.js";
import { el, fill, grid, put, section, soft } from "./elements.js";
import { upper, watch } from "./folder.js";
import { minute, number } from "./numbers.js";
import { colour } from "./palette.js";
import { ID, act } from "./stream.js";

const FILLS = 100;  // the newest are shown
const HALT = "Stops the process that runs the account and blocks all decisions and orders until "
  + "the file KILL is removed from the deployment's folder.";

const unitsText = (units) => [units ?? []].flat().map(number).join(", ") || "–";
const newestFirst = (rows) => [...rows].reverse();

function gateRow({ name, passed, forced, figure }) {
  const result = passed ? "passed" : forced ? "FORCED" : "FAILED";
  return [name, result, figure, passed ? "" : forced ?? ""];
}

const passRow = (pass) => [pass.name, minute(pass.time), number(pass.equity),
  unitsText(pass.action), unitsText(pass.target_units), number(pass.count)];
const auditRow = (line) => [minute(line.time), line.event, String(line.to), line.source ?? "",
  line.why ?? ""];

function fillTable(rerun) {
  const passes = rerun?.passes ?? [];
  const changes = passes.flatMap((pass) => pass.position_changes.map((row) => [...row, pass.name]));
  const newest = changes.sort((a, b) => b[0] - a[0]).slice(0, FILLS);
  const rows = newest.map(([second, from, to, name]) =>
    [minute(second), name, unitsText(from), unitsText(to)]);
  const sum = (pass) => `${pass.name}: ${number(pass.fills)} fills, costs ${number(pass.costs)}`;
  const summary = `Fills of the rerun, newest first. ${passes.map(sum).join("; ")}.`;
  return [rows.length ? soft(summary) : null, grid(["bar", "pass", "units before", "units after"],
    rows, rerun ? "no fill yet" : "no data yet: fills are shown after a rerun")];
}

function killSwitch() {  // returns the function that draws it
  const body = section("Kill switch");
  let sure = false;
  return function draw(facts) {
    const focused = body.contains(document.activeElement);
    const press = () => {
      if (sure) act({ id: ID, name: facts.name }, "kill");
      sure = !sure;
      draw(facts);
    };
    const label = sure ? `Press again to stop ${facts.name}` : "Stop this deployment";
    const stopped = `The kill switch is set (${facts.killed}): the deployment is stopped until the `
      + "file KILL is removed.";
    fill(body, facts.killed ? el("p", { class: "problem" }, stopped)
      : [el("p", {}, HALT), el("button", { onclick: press }, label)]);
    if (focused) body.querySelector("button")?.focus();
  };
}

export function deployment() {
  const header = upper("Deployment", false), forced = el("div");
  put(forced);
  const gates = section("Gates");
  const curves = section("Equity of the paper account, compared with a rerun by evaluate", "div",
    { class: "grid wide" });
  const note = soft(""), charts = new Charts(curves);
  curves.after(note);
  const positions = section("Positions"), fills = section("Fills"), versions = section("Versions");
  const audit = section("Audit trail"), halt = killSwitch();
  let facts = {}, account = {};

  function drawAccount({ passes = [], rerun }) {
    const rerunPasses = new Map((rerun?.passes ?? []).map((pass) => [pass.name, pass]));
    charts.keep(passes.map((pass) => pass.name));
    for (const { name, curve } of passes) {
      const rerunCurve = rerunPasses.get(name)?.curve;
      const [xs, rerunEquity, equity] = uPlot.join([columns(rerunCurve ?? []), columns(curve)]);
      const below = { label: "rerun", values: rerunEquity, width: 5, colour: colour(1) };
      const above = { label: "account", values: equity, colour: colour(0) };
      const options = { x: "time, UTC", y: "account currency", time: true, height: 240 };
      charts.of(name, name, options).set(xs, rerunCurve ? [below, above] : [above]);
    }
    const equal = (pass) =>
      `${pass.name}, ${pass.num_equal} of ${pass.num_compared} decisions bit-identical`;
    const summary = rerun
      && `Rerun of ${minute(rerun.at)}: ${rerun.passes.map(equal).join("; ")}.`;
    const command = `slipstream paper report ${facts.name ?? "NAME"}`;
    note.textContent = summary ?? `No rerun yet. Run ${command} for one.`;
    fill(positions, grid(
      ["pass", "bar", "equity", "action", "units after the next fill", "decisions"],
      passes.map(passRow), "no data yet: no decision was made"));
    fill(fills, fillTable(rerun));
  }
  function draw() {
    fill(forced, (facts.forced ?? []).map((text) => el("p", { class: "problem" }, text)));
    fill(gates, grid(["gate", "result", "figure", "forced because"],
      (facts.gates ?? []).map(gateRow)));
    const from = facts.study ? `, of the study ${facts.study}` : "";
    const describe = (number) => (number === facts.version ? `current: ${facts.label}${from}` : "");
    fill(versions, grid(["version", "description"],
      newestFirst(facts.versions ?? []).map((number) => [String(number), describe(number)])));
    fill(audit, grid(["time", "event", "version", "source", "why"],
      newestFirst(facts.audit ?? []).map(auditRow)));
    drawAccount(account);
    halt(facts);
  }
  watch("deployment", header, (name, data) => {
    if (name === "facts") facts = data;
    if (name === "account") account = data;
  }, draw);
}

// The page of a deployment: gates, its paper account beside the rerun, and the kill switch.
import { Charts, columns } from "./chart.js";
import { el, fill, grid, put, section, soft } from "./elements.js";
import { upper, watch } from "./folder.js";
import { minute, number } from "./numbers.js";
import { colour } from "./palette.js";
import { ID, act } from "./stream.js";

const FILLS = 100;  // the newest are shown
const HALT = "Ends the process that leads the account, and forbids every further decision and "
  + "order until the file KILL is removed from the deployment's folder by hand.";

const words = (units) => [units ?? []].flat().map(number).join(", ") || "–";
const newestFirst = (rows) => [...rows].reverse();

function gateRow({ name, passed, forced, figure }) {
  const judged = passed ? "passed" : forced ? "FORCED" : "FAILED";
  return [name, judged, figure, passed ? "" : forced ?? ""];
}

const passRow = (one) => [one.name, minute(one.time), number(one.equity), words(one.action),
  words(one.target_units), number(one.count)];
const auditRow = (one) => [minute(one.time), one.event, String(one.to), one.source ?? "",
  one.why ?? ""];

function fillTable(rerun) {
  const each = rerun?.passes ?? [];
  const moved = each.flatMap((one) => one.position_changes.map((row) => [...row, one.name]));
  const newest = moved.sort((a, b) => b[0] - a[0]).slice(0, FILLS);
  const rows = newest.map(([second, from, to, name]) =>
    [minute(second), name, words(from), words(to)]);
  const sum = (one) => `${one.name}: ${number(one.fills)} fills, costs ${number(one.costs)}`;
  const told = `As the rerun has them, the newest first. ${each.map(sum).join("; ")}.`;
  return [rows.length ? soft(told) : null, grid(["bar", "pass", "units before", "units after"],
    rows, rerun ? "no fill yet" : "no data yet: the rerun has them")];
}

function killSwitch() {  // returns what draws it
  const body = section("Kill switch");
  let sure = false;
  return function draw(facts) {
    const focused = body.contains(document.activeElement);
    const press = () => {
      if (sure) act({ id: ID, name: facts.name }, "kill");
      sure = !sure;
      draw(facts);
    };
    const label = sure ? `Press again, and ${facts.name} stops` : "Stop this deployment";
    const there = `The file KILL is there (${facts.killed}): the deployment is stopped until it `
      + "is removed.";
    fill(body, facts.killed ? el("p", { class: "problem" }, there)
      : [el("p", {}, HALT), el("button", { onclick: press }, label)]);
    if (focused) body.querySelector("button")?.focus();
  };
}

export function deployment() {
  const told = upper("Deployment", false), forced = el("div");
  put(forced);
  const gates = section("Gates");
  const curves = section("Equity of the paper account, beside the rerun by evaluate", "div",
    { class: "grid wide" });
  const note = soft(""), charts = new Charts(curves);
  curves.after(note);
  const held = section("Positions"), fills = section("Fills"), versions = section("Versions");
  const audit = section("Audit trail"), halt = killSwitch();
  let facts = {}, account = {};

  function drawAccount({ passes = [], rerun }) {
    const again = new Map((rerun?.passes ?? []).map((one) => [one.name, one]));
    charts.keep(passes.map((one) => one.name));
    for (const { name, curve } of passes) {
      const other = again.get(name)?.curve;
      const [xs, theirs, mine] = uPlot.join([columns(other ?? []), columns(curve)]);
      const below = { label: "rerun", values: theirs, width: 5, colour: colour(1) };
      const above = { label: "account", values: mine, colour: colour(0) };
      const how = { x: "time, UTC", y: "account currency", time: true, height: 240 };
      charts.of(name, name, how).set(xs, other ? [below, above] : [above]);
    }
    const equal = (one) =>
      `${one.name}, ${one.num_equal} of ${one.num_compared} decisions bit-identical`;
    const found = rerun && `Rerun of ${minute(rerun.at)}: ${rerun.passes.map(equal).join("; ")}.`;
    const command = `slipstream paper report ${facts.name ?? "NAME"}`;
    note.textContent = found ?? `No rerun yet: ${command} makes one.`;
    fill(held, grid(["pass", "bar", "equity", "action", "units after the next fill", "decisions"],
      passes.map(passRow), "no data yet: no bar was decided on"));
    fill(fills, fillTable(rerun));
  }
  function draw() {
    fill(forced, (facts.forced ?? []).map((one) => el("p", { class: "problem" }, one)));
    fill(gates, grid(["gate", "judged", "figure", "forced because"],
      (facts.gates ?? []).map(gateRow)));
    const from = facts.study ? `, of the study ${facts.study}` : "";
    const force = (one) => (one === facts.version ? `in force: ${facts.label}${from}` : "");
    fill(versions, grid(["version", "what it is"],
      newestFirst(facts.versions ?? []).map((one) => [String(one), force(one)])));
    fill(audit, grid(["time", "event", "version", "source", "why"],
      newestFirst(facts.audit ?? []).map(auditRow)));
    drawAccount(account);
    halt(facts);
  }
  watch("deployment", told, (name, data) => {
    if (name === "facts") facts = data;
    if (name === "account") account = data;
  }, draw);
}

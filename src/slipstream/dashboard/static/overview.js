// The first page, and the page of jobs: the machine, and a row for each run, study and job.
import { Charts } from "./chart.js";
import { el, fill, grid, heading, progress, put, section, soft, spark, state }
  from "./elements.js";
import { finite, number } from "./numbers.js";
import { act, follow } from "./stream.js";

const HOUR = 360;  // looks at the machine
const GIB = 2 ** 30;
const RULE = "Stop ends at a checkpoint; resume and retry continue from it. Nothing else here "
  + "writes, except the kill switch of a deployment's page.";
const DO = new Map([["running", "stop"], ["waiting", "stop"], ["silent", "stop"],
  ["stopped", "resume"], ["gone", "resume"]]);  // by state, which a stranger may have written

const gib = (bytes) => (finite(bytes) ? bytes / GIB : null);

function machine() {  // returns what is told about it
  const has = soft(""), pictures = el("div", { class: "grid" }), charts = new Charts(pictures);
  section("The machine, the last hour").append(has, pictures);
  let seen = [];

  function set(title, y, series, range) {
    const how = { x: "time, UTC", y, time: true, height: 150, range, legend: series.length > 1 };
    const last = series.map((one) => number(one.values.at(-1))).join(" and ");
    const chart = charts.of(title, title, how);
    chart.title.textContent = `${title}, ${last} ${y.split(" ")[0]}`;
    chart.set(seen.map((one) => one.at), series);
  }
  return ({ rows, cores, memory }) => {
    const newest = seen.at(-1)?.at ?? 0;
    seen = seen.concat(rows.filter((one) => one.at > newest)).slice(-HOUR);
    if (!seen.length) return;
    const { cards } = seen.at(-1);
    const names = cards.length ? cards.map((one) => one.name).join(", ") : "no GPU";
    has.textContent = `${cores} cores, ${number(gib(memory))} GiB of memory, ${names}; `
      + "sampled every ten seconds since this dashboard started";
    const line = (label, of) => [{ label, values: seen.map(of) }];
    const each = (of) =>
      cards.flatMap((card, k) => line(`${k} ${card.name}`, (one) => of(one.cards[k] ?? {})));
    set("CPU", "% of all cores", line("CPU", (one) => one.cpu), [0, 100]);
    set("Memory in use", "GiB", line("memory", (one) => gib(one.memory)), [0, gib(memory)]);
    if (!cards.length) return;
    set("GPU use", "%", each((one) => one.percent), [0, 100]);
    const vram = Math.max(...cards.map((one) => gib(one.vram_total)));
    set("GPU memory in use", "GiB", each((one) => gib(one.vram)), vram ? [0, vram] : null);
    set("GPU power", "W", each((one) => one.watts));
  };
}

function choice() {  // of runs to compare: the line that says so, and a row's box
  const chosen = new Set(), line = soft("");
  function tell() {
    const some = [...chosen].slice(0, 6), href = `/compare/${some.join(",")}`;
    const link = el("a", { href }, `Compare ${some.length} runs`);
    const more = chosen.size > 6 ? ", the first six of those marked" : "";
    fill(line, some.length > 1 ? [link, more] : "Mark up to six runs to compare them.");
  }
  function box(row) {
    if (row.kind !== "run") return "";
    const mark = ({ target }) => {
      if (target.checked) chosen.add(row.id);
      else chosen.delete(row.id);
      tell();
    };
    const name = `compare ${row.name}`, key = `${row.id} compare`;
    const one = { type: "checkbox", "aria-label": name, "data-key": key, onchange: mark };
    return Object.assign(el("input", one), { checked: chosen.has(row.id) });
  }
  tell();
  return [line, box];
}

function button(row) {  // what can be done with it
  const action = row.state === "failed" && row.job ? "retry" : DO.get(row.state);
  const how = { "aria-label": `${action} ${row.name}`, "data-key": `${row.id} ${action}`,
    onclick: () => act(row, action) };
  return action ? el("button", how, action) : "";
}

const link = (row) => el("a", { href: `/${row.kind}/${row.id}`, "data-key": `${row.id} link` },
  row.name || row.folder);

function far(row) {
  const words = `${row.phase && !row.ended ? `${row.phase} ` : ""}${row.progress}`;
  return row.share === null ? words : el("span", {}, progress(row.share), ` ${words}`);
}

const CELLS = { name: link, state: (row) => state(row.state), progress: far, ETA: (row) => row.eta,
  score: (row) => spark(row.spark), best: (row) => (finite(row.best) ? number(row.best) : ""),
  do: button };  // the others are words

function list(title, above, names, empty, more = {}) {  // returns what draws its rows
  const body = section(title), columns = names.split(" "), cells = { ...CELLS, ...more };
  const cell = (row) => (name) => (name in cells ? cells[name](row) : row[name]);
  return (rows) => {  // what had the keyboard's focus has it again
    const key = document.activeElement?.dataset?.key;
    fill(body, above, grid(columns, rows.map((row) => columns.map(cell(row))), empty,
      { class: "rows" }));
    if (key) body.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
  };
}

export function overview() {
  heading("Overview");
  const measured = machine(), [above, compare] = choice();
  const draw = list("Runs, studies, deployments and jobs", above,
    "compare name kind state progress rate ETA score best reason since",
    "No runs yet: `slipstream train cartpole` trains one.", { compare });
  const older = soft("");
  put(older);
  follow("overview", "all", (name, told) => {
    if (name === "machine") measured(told);
    if (name === "older" && told) {
      older.textContent = `and ${told} older ones: \`slipstream dash FOLDER\` shows all below it`;
    }
    if (name === "rows") draw(told);
  });
}

export function jobs() {
  heading("Jobs");
  const draw = list("Queue, and what was started by hand", soft(RULE),
    "job name kind state progress cores memory reason since do",
    "Nothing runs or waits: `slipstream jobs add -- train cartpole` adds a job.");
  follow("overview", "all", (name, told) => {
    if (name === "rows") draw(told.filter((row) => row.job || !row.ended));
  });
}

// The pages: each asks once for all there is, then follows one stream of what is new. Nothing is kept elsewhere.
"use strict";
const main = document.getElementById("main"), [, PAGE = "", ID = ""] = location.pathname.split("/");
const say = (words) => { const said = document.getElementById("said"); said.textContent = words; said.hidden = !words; };

function follow(page, id, handle, drawn) {
  const link = document.getElementById("link");
  let place = "", source = null, timer = 0, due = 0, troubled = false;
  const state = (words, lost) => { link.textContent = words; link.classList.toggle("lost", !!lost); };
  const take = (events) => {
    for (const [name, facts] of events) {
      if (name === "problem" || troubled) say(name === "problem" ? facts : "");
      troubled = name === "problem";
      if (!troubled) handle(name, facts);
    }
    if (!due) due = requestAnimationFrame(() => { due = 0; drawn(); });
  };
  const open = () => {
    source = new EventSource(`/stream/${page}/${id}?from=${encodeURIComponent(place)}`);
    source.onopen = () => state("live");
    source.addEventListener("news", (event) => { place = event.lastEventId; state("live"); take(JSON.parse(event.data)); });
    source.onerror = () => {
      state("connection lost, trying again", true);
      if (source.readyState === EventSource.CLOSED) { source = null; clearTimeout(timer); timer = setTimeout(ask, 2000); }
    };
  };
  const ask = async () => {  // the same by GET: at the beginning, and where a stream is refused
    try {
      const answer = await fetch(`/api/${page}/${id}?from=${encodeURIComponent(place)}`);
      if (!answer.ok) { say(await answer.text()); state("refused", true); return; }
      const told = await answer.json();
      place = told.place; take(told.events); open();
    } catch { state("connection lost, trying again", true); timer = setTimeout(ask, 2000); }
  };
  document.addEventListener("visibilitychange", () => {  // a browser has six connections to a server
    if (document.hidden) { source?.close(); source = null; clearTimeout(timer); } else if (!source) ask();
  });
  if (!document.hidden) ask();
}

async function act(row, action) {
  say(`${action} ${row.name} ...`);
  const answer = await fetch(`/act/${row.id}/${action}`, { method: "POST" });
  say((answer.headers.get("content-type") ?? "").includes("json") ? (await answer.json()).said : await answer.text());
}
const heading = (title) => { document.title = `${title} · slipstream`; const one = el("h1", {}, title); main.append(one); return one; };
const section = (title, kind = "div", how = {}) => { const body = el(kind, how); main.append(el("section", {}, el("h2", {}, title), body)); return body; };
const fill = (body, ...kids) => body.replaceChildren(...kids.flat().filter((kid) => kid !== null && kid !== undefined));
const none = (words = "no data yet") => el("p", { class: "none" }, words);
const state = (name) => el("span", { class: `state ${/^[a-z]+$/.test(name) ? name : ""}` }, name);
const head = (names) => el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col" }, name))));
function grid(names, rows, how = {}) {  // a table; cells are words or elements
  const cells = (row) => el("tr", {}, row.map((cell, k) => el("td", { "data-name": names[k], class: typeof cell === "string" && cell.length > 40 ? "long" : null }, cell ?? "")));
  return el("div", { class: "scroll" }, el("table", how, head(names), el("tbody", {}, rows.map(cells))));
}
const tiles = (all) => el("dl", { class: "tiles" }, all.map(([name, value, beside]) => el("div", {}, el("dt", {}, name), el("dd", { class: "value" }, value), beside ? el("dd", { class: "beside" }, beside) : null)));
function strip(phases) {
  const known = Object.entries(phases ?? {}).filter(([, seconds]) => seconds > 0), whole = known.reduce((sum, [, one]) => sum + one, 0);
  if (!whole) return none();
  const words = known.map(([name, one]) => `${name} ${Math.round((100 * one) / whole)} %`);
  const bar = el("div", { class: "strip", role: "img", "aria-label": words.join(", ") });
  known.forEach(([name, one], k) => {
    const part = el("span", { title: words[k] }, one / whole > 0.07 ? words[k] : "");
    part.style.flex = `${one} 0 0`; part.style.background = PALETTE.light[(k + 2) % 8]; bar.append(part);
  });
  return [bar, el("p", { class: "soft" }, `of ${clock(whole)} of all processes: ${words.join(", ")}`)];
}
function spark(values) {
  const known = values.filter(finite);
  if (known.length < 2) return el("span", { class: "soft" }, "no data yet");
  const make = (tag, props) => { const one = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const [k, v] of Object.entries(props)) one.setAttribute(k, v); return one; };
  const low = Math.min(...known), high = Math.max(...known), room = high - low || 1;
  const svg = make("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": `score from ${number(known[0])} to ${number(known.at(-1))}` });
  svg.append(make("polyline", { points: known.map((y, k) => `${(100 * k) / (known.length - 1)},${22 - (20 * (y - low)) / room}`).join(" ") }));
  return el("span", { title: `${number(known[0])} to ${number(known.at(-1))}` }, svg);
}
const bar = (share, words) => (share === null ? words : el("span", {}, el("progress", { max: 1, value: share, "aria-label": "progress" }), ` ${words}`));

function overview(jobs) {
  heading(jobs ? "Jobs" : "Overview");
  const machine = jobs ? null : section("The machine, the last hour"), body = section(jobs ? "Queue, and what was started by hand" : "Runs, studies, deployments and jobs");
  let rows = null, seen = [], facts = null, charts = null;
  const chosen = new Set(), compare = el("p", { class: "soft" });
  const actions = (row) => {
    const can = { running: "stop", waiting: "stop", silent: "stop", stopped: "resume", gone: "resume", failed: row.job ? "retry" : "" }[row.state];
    return el("span", {}, (can ? [can] : []).map((action) => el("button", { "aria-label": `${action} ${row.name}`, "data-key": `${row.id} ${action}`, onclick: () => act(row, action) }, action)));
  };
  const tick = (row) => {
    if (row.kind !== "run") return "";
    const mark = (event) => { event.target.checked ? chosen.add(row.id) : chosen.delete(row.id); told(); };
    const box = el("input", { type: "checkbox", "aria-label": `compare ${row.name}`, "data-key": row.id, onchange: mark });
    return Object.assign(box, { checked: chosen.has(row.id) });
  };
  const told = () => {
    const some = [...chosen].slice(0, 6), link = el("a", { href: `/compare/${some.join(",")}` }, `Compare ${some.length} runs`);
    fill(compare, some.length > 1 ? link : "Mark up to six runs to compare them.");
  };
  told();
  function draw() {
    if (facts && machine && seen.length) {
      const xs = seen.map((one) => one.at), cards = seen.at(-1).cards;
      if (!charts) {
        const names = cards.length ? cards.map((one) => one.name).join(", ") : "no GPU", body = el("div", { class: "grid" });
        const has = `${facts.cores} cores, ${number(facts.memory / 2 ** 30)} GiB of memory, ${names}`;
        fill(machine, el("p", { class: "soft" }, `${has}; looked at every ten seconds since this dashboard began`), body);
        const more = [["GPU use", "%", [0, 100]], ["GPU memory in use", "GiB"], ["GPU power", "W"]];
        const all = [["Processor", "% of all cores", [0, 100]], ["Memory in use", "GiB"], ...(cards.length ? more : [])];
        charts = all.map(([title, y, range]) => new Chart(body, title, { x: "time", y, time: true, height: 150, range, legend: cards.length > 1 }));
      }
      const line = (label, of) => ({ label, values: seen.map(of) }), each = (of) => cards.map((card, k) => line(`${k} ${card.name}`, (one) => of(one.cards[k] ?? {})));
      const all = [[line("processor", (one) => one.cpu)], [line("memory", (one) => one.memory / 2 ** 30)], each((one) => one.percent), each((one) => (finite(one.vram) ? one.vram / 2 ** 30 : null)), each((one) => one.watts)];
      charts.forEach((one, k) => one.set(xs, all[k]));
    }
    if (!rows) return;
    const shown = jobs ? rows.filter((row) => row.job || !row.ended) : rows, at = document.activeElement?.dataset?.key;
    const link = (row) => el("a", { href: `/${row.kind}/${row.id}`, "data-key": `${row.id} link` }, row.name || row.folder);
    const far = (row) => bar(row.share, `${row.phase && !row.ended ? `${row.phase} ` : ""}${row.progress}`);
    const table = shown.map((row) => [
      jobs ? row.job : tick(row), link(row), row.kind, state(row.state), far(row),
      ...(jobs ? [row.cores, row.memory] : [row.rate, row.eta, spark(row.spark), finite(row.best) ? number(row.best) : ""]), row.reason, row.since, ...(jobs ? [actions(row)] : [])]);
    const before = [jobs ? "job" : "compare", "name", "kind", "state", "progress"], more = jobs ? ["cores", "memory"] : ["rate", "ETA", "score", "best"];
    const names = [...before, ...more, "reason", "since", ...(jobs ? ["do"] : [])];
    const words = jobs ? "Nothing runs or waits: `slipstream jobs add -- train cartpole` adds a job." : "Nothing was ever begun: `slipstream train cartpole` trains something.";
    const rule = el("p", { class: "soft" }, "Stop ends at a checkpoint; resume and retry go on from it. Nothing else here writes, but for the kill switch of a deployment's page.");
    fill(body, jobs ? rule : compare, shown.length ? grid(names, table, { class: "rows" }) : none(words));
    if (at) main.querySelector(`[data-key="${CSS.escape(at)}"]`)?.focus();
  }
  follow("overview", "all", (name, told) => {
    if (name === "rows") rows = told;
    if (name === "machine") { facts = told; seen = seen.concat(told.rows.filter((one) => one.at > (seen.at(-1)?.at ?? 0))).slice(-360); }
  }, draw);
}

function upper(kind, timed = true) {  // what all pages of folders begin with; returns how a status is told
  const title = heading(kind), now = el("div"), report = el("div"), phases = el("div");
  main.append(now, report, timed ? el("section", {}, el("h2", {}, "Where the time goes"), phases) : "");
  return (name, facts) => {
    if (name === "facts") {
      title.textContent = `${kind} ${facts.name}`; document.title = `${facts.name} · slipstream`;
      if (facts.unreadable) say(facts.unreadable);
      const frame = () => el("iframe", { src: `/page/${ID}`, sandbox: "", title: `${kind}'s page`, loading: "lazy" });
      if (facts.page && !report.firstChild) report.append(el("details", { open: true }, el("summary", {}, kind === "Run" ? "Report" : "The study's page"), frame()));
    }
    if (name === "status") {
      const share = facts.of > 0 ? Math.min(1, facts.done / facts.of) : null;
      fill(now, el("p", {}, state(facts.state), " ", share === null ? null : el("progress", { max: 1, value: share, "aria-label": "progress" })),
        (facts.lines ?? []).map((line) => el("p", { class: "mono" }, line)), (facts.notes ?? []).map((one) => el("p", { class: "note" }, one)));
      fill(phases, strip(facts.phases));
    }
  };
}
function lower() {  // events and log; returns how they are told
  const events = section("Events", "pre", { tabindex: 0 }), log = section("Log", "pre", { tabindex: 0 });
  const add = (pre, lines) => {
    const low = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 9;
    pre.textContent = (pre.textContent === "no data yet" ? lines : [...pre.textContent.split("\n"), ...lines]).slice(-400).join("\n");
    if (low) pre.scrollTop = pre.scrollHeight;
  };
  events.textContent = log.textContent = "no data yet";
  return (name, facts) => {
    if (name === "events") add(events, facts.map((one) => one.line ?? one));
    if (name === "log") add(log, facts);
    if (name === "reset" && facts.part === "log") log.textContent = "no data yet";
    if (name === "reset" && facts.part === "events") events.textContent = "no data yet";
  };
}
const UNITS = { cpu_percent: "% of a core", memory_gib: "GiB", gpu_percent: "%", vram_gib: "GiB", gpu_watts: "W", length: "steps", learning_rate: "" };
const PLACE = ["member", "steps", "iteration", "updates", "wall", "seconds_env", "seconds_policy", "seconds_update", "seconds_validate", "failed"];
const CALLED = { cpu_percent: "Processor", memory_gib: "Memory", gpu_percent: "GPU use", vram_gib: "GPU memory", gpu_watts: "GPU power", length: "Episode length" };
const METRIC = (name) => CALLED[name] ?? (name.startsWith("episode/") ? `${name.slice(8)}, recent episodes` : name.replaceAll("_", " "));
function rates(rows) {  // steps a second of each member, between neighbouring rows
  const steps = rows.columns.indexOf("steps"), wall = rows.columns.indexOf("wall");
  const own = rows.members.values().next().value ?? [], xs = [], ys = [];
  for (let k = 1; k < own.length; k += 1) {
    const seconds = own[k][wall] - own[k - 1][wall], done = own[k][steps] - own[k - 1][steps];
    if (seconds > 0 && done > 0) { xs.push(own[k][steps]); ys.push((done / seconds) * rows.members.size); }
  }
  return [xs, ys];
}

function run() {
  const told = upper("Run"), curves = section("Learning", "div", { class: "grid wide" }), more = section("Updates and episodes", "div", { class: "grid" }), machine = section("What it takes of the machine", "div", { class: "grid" });
  const files = section("Checkpoints and videos"), config = section("Config"), said = lower();
  const metrics = new Rows(), evaluations = new Rows(), charts = new Map();
  const chart = (key, parent, title, y, how = {}) => { if (!charts.has(key)) charts.set(key, new Chart(parent, title, { x: "steps of a member", y, ...how })); return charts.get(key); };
  const many = ([[xs, ...each], keys]) => [xs, each.map((values, k) => ({ label: `member ${keys[k]}`, values, width: keys.length > 10 ? 0.8 : 1.6 }))];
  chart("score", curves, "Score of recent training episodes, by member", "score", { height: 240 }); chart("evaluated", curves, "Score in validation, by member", "score", { height: 240 });
  chart("rate", machine, "Speed, all members", "steps/s", { legend: false }); chart("cpu_percent", machine, CALLED.cpu_percent, UNITS.cpu_percent, { legend: false });
  function draw() {
    chart("score").set(...many(metrics.curves("score"))); chart("evaluated").set(...many(evaluations.curves("score")));
    const [xs, ys] = rates(metrics);
    chart("rate").set(xs, [{ label: "steps/s", values: ys }]);
    for (const name of metrics.columns) {
      if (PLACE.includes(name) || name === "score") continue;
      const own = /^(cpu|memory|gpu|vram)_/.test(name), found = own ? [metrics.mean(name)[0], [{ label: name, values: metrics.mean(name)[1] }]] : many(metrics.curves(name));
      chart(name, own ? machine : more, METRIC(name), UNITS[name] ?? name.split("/").at(-1), { legend: !own }).set(...found);
    }
    if (charts.size < 5 && !more.firstChild) more.append(none()); else if (charts.size > 4) more.querySelector(":scope > .none")?.remove();
  }
  follow("run", ID, (name, facts) => {
    told(name, facts); said(name, facts);
    if (facts?.unreadable && name !== "facts") say(facts.unreadable);
    else if (name === "metrics") metrics.add(facts);
    else if (name === "evaluations") evaluations.add(facts, true);
    else if (name === "reset") ({ metrics, evaluations })[facts.part]?.clear();
    else if (name === "facts") {
      const clips = facts.videos.map((one) => {
        const src = `/video/${ID}/${encodeURIComponent(one)}`, film = one.endsWith(".mp4") ? el("video", { src, controls: true }) : el("img", { src, alt: one, class: "film" });
        return el("figure", {}, film, el("figcaption", {}, one));
      });
      fill(files, facts.checkpoints.length ? el("p", {}, facts.checkpoints.map((one) => short(+one.slice(5))).join(", "), " steps") : none("no checkpoint yet"), clips);
      const rows = (facts.config ?? []).map(([name, value, usual]) => [name, value, usual ? "default" : "set"]);
      const set = el("details", { open: true }, el("summary", {}, "What differs from the defaults"), grid(["setting", "value"], rows.filter((row) => row[2] === "set").map((row) => row.slice(0, 2))));
      fill(config, facts.command ? el("p", { class: "mono" }, facts.command) : null, set, el("details", {}, el("summary", {}, `All ${rows.length} settings`), grid(["setting", "value", ""], rows)));
    }
  }, draw);
}

function compare() {
  heading("Compare");
  const now = el("div"), curves = section("Learning", "div", { class: "grid wide" }), more = section("Updates, episodes and machine", "div", { class: "grid" });
  main.insertBefore(now, curves.parentNode);
  const runs = [], charts = new Map(), at = (k) => (runs[k] ??= { name: `run ${k}`, metrics: new Rows(), evaluations: new Rows(), state: "" });
  const chart = (key, parent, title, y, height) => { if (!charts.has(key)) charts.set(key, new Chart(parent, title, { x: "steps of a member", y, height })); return charts.get(key); };
  chart("score", curves, "Score of recent training episodes, mean of members", "score", 260); chart("evaluated", curves, "Score in validation, mean of members", "score", 260);
  function draw() {
    fill(now, grid(["run", "state", "score is"], runs.map((one, k) => [el("a", { href: `/run/${ID.split(",")[k]}` }, one.name), state(one.state), one.is ?? ""])));
    const over = (key, pick) => {
      const [xs, ...all] = uPlot.join(runs.map(pick));
      charts.get(key).set(xs, runs.map((one, k) => ({ label: one.name, values: all[k] ?? [] })));
    };
    if (!runs.length) return;
    over("score", (one) => one.metrics.mean("score")); over("evaluated", (one) => one.evaluations.mean("score"));
    chart("rate", more, "Speed, all members", "steps/s"); over("rate", (one) => rates(one.metrics));
    for (const name of new Set(runs.flatMap((one) => one.metrics.columns))) {
      if (PLACE.includes(name) || name === "score") continue;
      chart(name, more, METRIC(name), UNITS[name] ?? name.split("/").at(-1)); over(name, (one) => one.metrics.mean(name));
    }
  }
  follow("compare", ID, (name, { run, events }) => {
    const one = at(run);
    for (const [part, facts] of events) {
      if (part === "facts") { one.name = facts.name; one.is = facts.score_is; }
      else if (part === "status") one.state = facts.state;
      else if (part === "metrics" && facts.rows) one.metrics.add(facts);
      else if (part === "evaluations" && facts.rows) one.evaluations.add(facts, true);
      else if (part === "reset") ({ metrics: one.metrics, evaluations: one.evaluations })[facts.part]?.clear();
    }
  }, draw);
}

const KINDS = [["complete", 0], ["pruned", 6], ["inactive", 4], ["violating", 3], ["failed", 1]];
function study() {
  const told = upper("Study"), counts = section("Trials"), detail = el("div", { "aria-live": "polite" }), trials = new Map(), members = new Map(), live = new Map(), slices = new Map();
  let status = {}, asked = {}, best = null, openings = 0, order = [], shared = 0, changed = true, newest = 0;
  const scatter = el("div"), running = section("On their way, score of recent training episodes by fold", "div", { class: "grid" }), settings = section("Settings against score", "div", { class: "grid" }), shares = section("What made trials differ"), heat = section("Scores by fold, the best trials"), failures = section("Failures"), confirm = section("Confirmation and hold-out"), config = section("Config"), said = lower();
  counts.after(scatter, detail);
  const history = new Chart(scatter, "Score of each trial when it ended; choose a point to see its trial", { x: "time", y: "score", time: true, height: 260, pick: (k) => show(order[k]) });
  const score = (one) => (one.state === "failed" ? null : one.score);
  function show(one) {
    if (!one) return;
    const rungs = one.rungs.map(([at, value]) => `${short(at)}: ${number(value)}`).join(", "), took = one.ended ? clock(one.ended - one.asked) : "–";
    const facts = [state(one.state), number(one.score), took, one.folds.map(number).join(", "), rungs, one.reason];
    const params = Object.entries(one.params).map(([name, value]) => [name, finite(value) ? number(value) : String(value)]);
    fill(detail, el("h3", {}, `Trial ${one.number}`), grid(["state", "score", "took", "folds", "at rungs (steps: score)", "reason"], [facts]), grid(["setting", "value"], params));
  }
  function heatMap(rows) {
    if (!rows.length) return none();
    const all = rows.flatMap((one) => one.folds).filter(finite), most = Math.max(...all.map(Math.abs), 1e-9), low = Math.min(...all), high = Math.max(...all), signed = low < 0 && high > 0;
    const cell = (value) => {  // blue is good, red below zero
      const one = el("td", { class: "heat" }, number(value)), t = signed ? value / most : high > low ? (value - low) / (high - low) : 0, less = (by) => Math.round(255 - by * Math.abs(t));
      if (finite(value)) one.style.background = t < 0 ? `rgb(255 ${less(120)} ${less(170)})` : `rgb(${less(150)} ${less(70)} 255)`;
      return one;
    };
    const choose = (one) => el("button", { class: "link", onclick: () => { show(one); detail.scrollIntoView({ block: "nearest" }); } }, `trial ${one.number}`);
    const body = rows.map((one) => el("tr", {}, el("td", {}, choose(one)), el("td", {}, number(one.score)), one.folds.map(cell)));
    return el("div", { class: "scroll" }, el("table", {}, head(["trial", "score", ...rows[0].folds.map((_, k) => `fold ${k}`)]), el("tbody", {}, body)));
  }
  function underWay() {
    const there = new Map();
    for (const one of status.works ? status.running ?? [] : []) if (one.trial !== undefined) there.set(one.trial, []);
    for (const one of members.values()) if (there.has(one.trial) && one.phase === newestPhase()) there.get(one.trial).push(one);
    for (const [number, chart] of live) if (!there.has(number)) { chart.remove(); live.delete(number); }
    running.querySelector(":scope > .none")?.remove();
    if (!there.size) running.append(none(status.works ? "no data yet" : "Nobody works on it."));
    for (const [k, folds] of [...there].slice(0, 24)) {
      const budget = trials.get(k)?.params?.["training.total_steps"] ?? asked.steps;
      const marks = () => (asked.rungs ?? []).map((share) => share * budget);
      if (!live.has(k)) live.set(k, new Chart(running, "", { x: "steps of a member", y: "score", height: 150, legend: false, marks }));
      folds.sort((a, b) => a.fold - b.fold);
      const left = folds.map(({ points }) => {
        const now = points.at(-1), then = points[Math.max(0, points.length - 12)], pace = (now[0] - then[0]) / (now[2] - then[2]);
        return pace > 0 && budget ? Math.max(0, budget - now[0]) / pace : NaN;
      }).filter(finite);
      const chart = live.get(k), title = `Trial ${k}: ${left.length ? `${clock(Math.max(...left))} to go` : "time to go not known yet"}`;
      chart.title = title; chart.box.firstChild.textContent = title;
      const each = folds.map(({ points }) => [points.map((one) => one[0]), points.map((one) => one[1])]), [xs, ...all] = each.length ? uPlot.join(each) : [[]];
      chart.set(xs, folds.map((one, n) => ({ label: `fold ${one.fold}${one.repeat ? `, seed ${one.repeat}` : ""}`, values: all[n] })));
    }
  }
  const newestPhase = () => { const last = [...members.values()].at(-1); return last?.phase; };
  function draw() {
    underWay();
    const all = [...trials.values()], of = (kind) => all.filter((one) => one.state === kind), count = { ...Object.fromEntries(KINDS.map(([kind]) => [kind, of(kind).length])), running: of("running").length };
    const took = all.filter((one) => one.ended && one.state !== "failed").sort((a, b) => a.ended - b.ended).map((one) => one.ended - one.asked), sorted = [...took].sort((a, b) => a - b);
    const search = status.unit === "trials" && status.trials_per_hour ? ((status.of - status.done) / status.trials_per_hour) * 3600 : null, b = status.best ?? {};
    fill(counts, tiles([["Trials", `${all.length - count.running} of ${asked.n_trials ?? "?"}`, `${count.complete} complete, ${count.pruned} pruned, ${count.inactive} inactive, ${count.violating ? `${count.violating} violating, ` : ""}${count.failed} failed, ${count.running} running`],
      ["Trials per hour", number(status.trials_per_hour)], ["A trial takes", clock(sorted[Math.floor(sorted.length / 2)]), `median; the last ${clock(took.at(-1))}`], ["Search ends in", status.works && search !== null ? clock(search) : "–"], ["All ends in", status.works ? clock(status.eta) : "–", "with confirmation and final training"],
      ["Best", number(b.score ?? trials.get(best)?.score), best === null ? "no data yet" : `trial ${b.trial ?? best}${finite(b.low) ? `, 95 %: ${number(b.low)} to ${number(b.high)}` : ""}`]]));
    if (!changed) return;
    changed = false;
    order = all.filter((one) => one.ended && finite(score(one))).sort((a, b) => a.ended - b.ended);
    let high = null;
    const so = order.map((one) => { if (one.state === "complete" && (high === null || one.score > high)) high = one.score; return high; });
    const dots = (rows) => KINDS.slice(0, 4).map(([kind, k]) => ({ label: kind, kind: "points", colour: colour(k), values: rows.map((one) => (one.state === kind ? one.score : null)) }));
    history.set(order.map((one) => one.ended), [...dots(order), { label: "best so far", kind: "step", colour: own("--ink"), width: 1.2, values: so }]);
    const scored = order, names = Object.keys(all[0]?.params ?? {}).slice(0, 16), ranked = order.filter((one) => one.state === "complete").sort((a, b) => b.score - a.score);
    if (!names.length && !settings.firstChild) settings.append(none());
    for (const name of names) {
      settings.querySelector(":scope > .none")?.remove();
      const words = scored.some((one) => !finite(one.params[name])), ticks = words ? [...new Set(scored.map((one) => String(one.params[name])))].sort() : null;
      if (!slices.has(name)) slices.set(name, new Chart(settings, name, { x: name.split(".").at(-1), y: "score", height: 150, legend: false, log: (asked.log ?? []).includes(name) && !words }));
      const place = (one) => (words ? ticks.indexOf(String(one.params[name])) : one.params[name]), rows = scored.filter((one) => finite(place(one))).sort((a, b) => place(a) - place(b)), chart = slices.get(name);
      if (words && String(chart.how.ticks) !== String(ticks)) { chart.how.ticks = ticks; chart.shape = null; }
      chart.set(rows.map(place), dots(rows));
    }
    fill(heat, heatMap(ranked.slice(0, 25)));
    const failed = of("failed");
    fill(failures, failed.length ? grid(["trial", "reason"], failed.slice(-50).map((one) => [String(one.number), one.reason])) : none("no trial failed"));
    if (order.length >= 20 && order.length > shared * 1.25) { if (!shared) fill(shares, none("computing")); shared = order.length; important(); }
    else if (!shared) fill(shares, none("no data yet: it takes 20 trials with a score"));
  }
  async function important() {
    const answer = await fetch(`/api/importances/${ID}`);
    const told = answer.ok ? Object.entries(await answer.json()).slice(0, 15) : [];
    const caption = el("caption", {}, "Share of the importance, % (PED-ANOVA, trials that were stopped early among them)");
    const rows = told.map(([name, share]) => el("tr", {}, [name, el("progress", { max: 1, value: share, "aria-label": name }), `${Math.round(100 * share)} %`].map((cell) => el("td", {}, cell))));
    fill(shares, told.length ? el("div", { class: "scroll" }, el("table", { class: "bars" }, caption, el("tbody", {}, rows))) : none());
  }
  function outcome(facts) {
    const found = facts.result, opened = openings ? `The hold-out was opened ${openings === 1 ? "once" : `${openings} times`}.` : "The hold-out is closed: nothing has looked at it.";
    fill(confirm, el("p", {}, found?.market === false ? "This environment has no prices, and so no hold-out." : opened), (found?.sentences ?? []).map((one) => el("p", {}, one)),
      found?.candidates?.length ? grid(["trial", "lower bound", "value", "fresh seeds"], found.candidates.map((one) => [String(one.trial), number(one.lcb), number(one.value), (one.seeds ?? []).map(number).join(", ")])) : none("no data yet: the best trials are trained again on fresh seeds after the search"));
  }
  follow("study", ID, (name, facts) => {
    told(name, facts); said(name, facts);
    if (facts?.unreadable && name !== "facts") say(facts.unreadable);
    else if (name === "status") status = facts;
    else if (name === "trials") { for (const one of facts.rows) trials.set(one.number, one); best = facts.best; openings = facts.openings; changed = true; outcome(asked); }
    else if (name === "members") for (const [phase, trial, repeat, fold, step, value, at] of facts) {
      const key = `${phase} ${trial} ${repeat} ${fold}`, one = members.get(key) ?? { phase, trial, repeat, fold, points: [] };
      members.delete(key); members.set(key, one);
      const last = one.points.at(-1);
      if (!last || step > last[0]) one.points.push([step, value, at]);
      if (one.points.length > 400) one.points = one.points.filter((_, k) => k % 2);
    }
    else if (name === "reset" && facts.part === "members") members.clear();
    else if (name === "facts") { asked = facts; changed = true; outcome(facts); fill(config, facts.text ? el("details", {}, el("summary", {}, "study.yaml"), el("pre", { tabindex: 0 }, facts.text)) : none()); }
  }, draw);
}

function deployment() {
  const told = upper("Deployment", false), forced = el("div"), gates = section("Gates"), curves = section("Equity of the paper account, beside the rerun by evaluate", "div", { class: "grid wide" });
  const held = section("Positions"), fills = section("Fills"), versions = section("Versions"), audit = section("Audit trail"), halt = section("Kill switch"), said = lower(), charts = new Map(), note = el("p", { class: "soft" });
  main.insertBefore(forced, gates.parentNode); curves.after(note);
  let facts = {}, account = {}, sure = false;
  const at = (second) => `${new Date(1000 * second).toISOString().slice(0, 16).replace("T", " ")} UTC`, words = (units) => [units ?? []].flat().map(number).join(", ") || "–";
  const press = () => { if (sure) act({ id: ID, name: facts.name }, "kill"); sure = !sure; draw(); };
  function draw() {
    fill(forced, (facts.forced ?? []).map((one) => el("p", { class: "problem" }, one)));
    const judged = (gate) => [gate.name, gate.passed ? "passed" : gate.forced ? "FORCED" : "FAILED", gate.figure, gate.passed ? "" : gate.forced ?? ""];
    fill(gates, facts.gates?.length ? grid(["gate", "judged", "figure", "forced because"], facts.gates.map(judged)) : none());
    const rerun = new Map((account.rerun?.passes ?? []).map((one) => [one.name, one])), passes = account.passes ?? [], split = (curve) => [0, 1].map((k) => curve.map((row) => row[k]));
    for (const one of passes) {
      if (!charts.has(one.name)) charts.set(one.name, new Chart(curves, one.name, { x: "time", y: "account currency", time: true, height: 240 }));
      const again = rerun.get(one.name), [xs, theirs, mine] = uPlot.join([split(again?.curve ?? []), split(one.curve)]);
      charts.get(one.name).set(xs, [...(again ? [{ label: "rerun", values: theirs, width: 5, colour: own("--line") }] : []), { label: "account", values: mine, colour: colour(0) }]);
    }
    for (const [name, chart] of charts) if (!passes.some((one) => one.name === name)) { chart.remove(); charts.delete(name); }
    const equal = [...rerun.values()].map((one) => `${one.name}, ${one.equal} of ${one.both} decisions equal bit for bit`).join("; ");
    note.textContent = account.rerun ? `Rerun of ${at(account.rerun.at)}: ${equal}.` : `No rerun yet: slipstream paper report ${facts.name ?? "NAME"} makes one.`;
    fill(held, passes.length ? grid(["pass", "bar", "equity", "action", "units after the next fill", "decisions"], passes.map((one) => [one.name, at(one.time), number(one.equity), words(one.action), words(one.wanted), number(one.count)])) : none("no data yet: no bar was decided on"));
    const moved = [...rerun.values()].flatMap((one) => one.moved.map((row) => [...row, one.name])).sort((a, b) => b[0] - a[0]).slice(0, 100);
    const sums = [...rerun.values()].map((one) => `${one.name}: ${number(one.fills)} fills, costs ${number(one.costs)}`).join("; ");
    fill(fills, moved.length ? [el("p", { class: "soft" }, `As the rerun has them, the newest first. ${sums}.`), grid(["bar", "pass", "units before", "units after"], moved.map(([second, before, after, name]) => [at(second), name, words(before), words(after)]))] : none(account.rerun ? "no fill yet" : "no data yet: the rerun has them"));
    const force = (one) => (one === facts.version ? `in force: ${facts.label}${facts.study ? `, of the study ${facts.study}` : ""}` : "");
    fill(versions, facts.versions ? grid(["version", "what it is"], [...facts.versions].reverse().map((one) => [String(one), force(one)])) : none());
    fill(audit, facts.audit?.length ? grid(["time", "event", "version", "source", "why"], [...facts.audit].reverse().map((one) => [at(one.time), one.event, String(one.to), one.source ?? "", one.why ?? ""])) : none());
    const had = halt.contains(document.activeElement);
    fill(halt, facts.killed ? el("p", { class: "problem" }, `The file KILL is there (${facts.killed}): the deployment stands still until it is removed.`)
      : [el("p", {}, "Ends the process that leads the account, and forbids every further decision and order until the file KILL is removed from the deployment's folder by hand."), el("button", { onclick: press }, sure ? `Press again, and ${facts.name} stands still` : "Stop this deployment")]);
    if (had) halt.querySelector("button")?.focus();
  }
  follow("deployment", ID, (name, news) => {
    told(name, news); said(name, news);
    if (name === "facts") facts = news;
    if (name === "account") { account = news; if (news.unreadable) say(news.unreadable); }
  }, draw);
}

for (const link of document.querySelectorAll("nav a")) if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page");
({ "": () => overview(false), jobs: () => overview(true), run, study, deployment, compare })[PAGE]?.();

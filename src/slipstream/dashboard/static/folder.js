// What all pages of a folder have: how it stands, its own page, its events and its log.
import { el, fill, heading, none, progress, put, say, section, state, strip } from "./elements.js";
import { ID, follow } from "./stream.js";

const MOST = 400;  // lines

function ownPage(kind) {  // a report or a study's page, which others may have written
  const title = kind === "Run" ? "Report" : "The study's page";
  const how = { src: `/page/${ID}`, sandbox: "", title: `${kind}'s page`, loading: "lazy" };
  return el("details", { open: true }, el("summary", {}, title), el("iframe", how));
}

export function upper(kind, timed = true) {  // returns what is told of each event
  const title = heading(kind), now = el("div"), report = el("div"), phases = el("div");
  put(now, report, timed ? el("section", {}, el("h2", {}, "Where the time goes"), phases) : null);

  function named(facts) {
    title.textContent = `${kind} ${facts.name}`;
    document.title = `${facts.name} · slipstream`;
    if (facts.page && !report.firstChild) report.append(ownPage(kind));
  }
  function stands(facts) {
    const share = facts.total > 0 ? Math.min(1, facts.completed / facts.total) : null;
    const lines = (facts.lines ?? []).map((line) => el("p", { class: "mono" }, line));
    const notes = (facts.notes ?? []).map((one) => el("p", { class: "note" }, one));
    const bar = share === null ? null : progress(share);
    fill(now, el("p", {}, state(facts.state), " ", bar), lines, notes);
    fill(phases, strip(facts.phases));
  }
  return (name, facts) => {
    if (facts?.unreadable) say(facts.unreadable);
    if (name === "facts") named(facts);
    if (name === "status") stands(facts);
  };
}

function lines(title) {  // a text that grows below; returns what shows more of it, or none
  const pre = section(title, "pre", { tabindex: 0 });
  let kept = [];
  function show(all) {
    const low = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 9;
    kept = all.slice(-MOST);
    pre.textContent = kept.length ? kept.join("\n") : "no data yet";
    if (low) pre.scrollTop = pre.scrollHeight;
  }
  show([]);
  return { add: (more) => show(kept.concat(more)), clear: () => show([]) };
}

export function watch(kind, told, handle, draw) {  // events and log stand below what is there
  const parts = { events: lines("Events"), log: lines("Log") };
  follow(kind, ID, (name, facts) => {
    told(name, facts);
    if (name === "reset") parts[facts.part]?.clear();
    else parts[name]?.add(facts);
    handle(name, facts);
  }, draw);
}

export const text = (title, words) => (words
  ? el("details", {}, el("summary", {}, title), el("pre", { tabindex: 0 }, words)) : none());

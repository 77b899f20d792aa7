// Reads a page's data once, then follows a stream of updates.
import { say } from "./elements.js";

export const [, PAGE = "", ID = ""] = location.pathname.split("/");
const AGAIN = 2000;  // ms

export function follow(page, id, handle, drawn = () => {}) {
  const link = document.getElementById("link");
  let cursor = "", source = null, timer = 0, due = 0, troubled = false;

  function show(words, lost = false) {
    link.textContent = words;
    link.classList.toggle("lost", lost);
  }
  function retry() {
    clearTimeout(timer);
    timer = setTimeout(ask, AGAIN);
  }
  function take(events) {
    for (const [name, facts] of events) {
      if (name === "problem" || troubled) say(name === "problem" ? facts : "");
      troubled = name === "problem";
      if (!troubled) handle(name, facts);
    }
    due ||= requestAnimationFrame(() => { due = 0; drawn(); });
  }
  function open() {
    source = new EventSource(`/stream/${page}/${id}?from=${encodeURIComponent(cursor)}`);
    source.onopen = () => show("live");
    source.addEventListener("updates", (event) => {
      cursor = event.lastEventId;
      show("live");
      take(JSON.parse(event.data));
    });
    source.onerror = () => {
      show("connection lost, trying again", true);
      if (source.readyState !== EventSource.CLOSED) return;
      source = null;
      retry();
    };
  }
  async function ask() {  // the same updates by GET: at first, and if a stream is refused
    try {
      const answer = await fetch(`/api/${page}/${id}?from=${encodeURIComponent(cursor)}`);
      if (!answer.ok) {
        say(await answer.text());
        show("refused", true);
        return;
      }
      const told = await answer.json();
      cursor = told.cursor;
      take(told.events);
      open();
    } catch {
      show("connection lost, trying again", true);
      retry();
    }
  }
  document.addEventListener("visibilitychange", () => {  // a browser has six connections
    if (document.hidden) {
      source?.close();
      source = null;
      clearTimeout(timer);
    } else if (!source) ask();
  });
  if (!document.hidden) ask();
}

export async function act(row, action) {
  say(`${action} ${row.name} ...`);
  const answer = await fetch(`/act/${row.id}/${action}`, { method: "POST" });
  const json = (answer.headers.get("content-type") ?? "").includes("json");
  say(json ? (await answer.json()).message : await answer.text());
}

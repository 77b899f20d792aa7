// What pages are put together from. Texts are set as text: nothing of a run becomes markup.
import { clock, finite, number } from "./numbers.js";
import { PALETTE } from "./palette.js";

const there = (kids) => kids.flat(Infinity).filter((kid) => kid !== null && kid !== undefined);
const main = document.getElementById("main");

export function el(tag, props = {}, ...kids) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) one.addEventListener(name.slice(2), value);
    else if (name === "class") one.className = value;
    else if (value === true) one.setAttribute(name, "");
    else if ((value ?? false) !== false) one.setAttribute(name, value);
  }
  one.append(...there(kids));
  return one;
}

export const fill = (body, ...kids) => body.replaceChildren(...there(kids));
export const none = (words = "no data yet") => el("p", { class: "none" }, words);
export const soft = (words) => el("p", { class: "soft" }, words);
export const put = (...kids) => main.append(...there(kids));

export function say(words) {  // above the page
  const message = document.getElementById("message");
  message.textContent = words;
  message.hidden = !words;
}

export function heading(title) {
  const one = el("h1", {}, title);
  document.title = `${title} · slipstream`;
  put(one);
  return one;
}

export function section(title, kind = "div", how = {}) {  // its body
  const body = el(kind, how);
  put(el("section", {}, el("h2", {}, title), body));
  return body;
}

export const state = (name) =>
  el("span", { class: `state ${/^[a-z]+$/.test(name) ? name : ""}` }, name);

export function grid(names, rows, empty, how = {}) {  // a table; cells are words or elements
  if (!rows.length) return none(empty);
  const long = (cell) => (typeof cell === "string" && cell.length > 40 ? "long" : null);
  const cells = (row) => row.map((cell, k) =>
    el("td", { "data-name": names[k], class: long(cell) }, cell ?? ""));
  const head = el("tr", {}, names.map((name) => el("th", { scope: "col" }, name)));
  return el("div", { class: "scroll" }, el("table", how, el("thead", {}, head),
    el("tbody", {}, rows.map((row) => el("tr", {}, cells(row))))));
}

export function tiles(all) {
  const tile = ([name, value, beside]) => el("div", {}, el("dt", {}, name),
    el("dd", { class: "value" }, value), beside ? el("dd", { class: "beside" }, beside) : null);
  return el("dl", { class: "tiles" }, all.map(tile));
}

export const progress = (share, name = "progress") =>
  el("progress", { max: 1, value: share, "aria-label": name });

export function strip(phases) {  // seconds by what they were spent on
  const known = Object.entries(phases ?? {}).filter(([, seconds]) => seconds > 0);
  const whole = known.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!whole) return none();
  const words = known.map(([name, one]) => `${name} ${Math.round((100 * one) / whole)} %`);
  const bar = el("div", { class: "strip", role: "img", "aria-label": words.join(", ") });
  known.forEach(([, one], k) => {
    const part = el("span", { title: words[k] }, one / whole > 0.07 ? words[k] : "");
    part.style.flex = `${one} 0 0`;
    part.style.background = PALETTE.light[(k + 2) % 8];
    bar.append(part);
  });
  return [bar, soft(`of ${clock(whole)} of all processes: ${words.join(", ")}`)];
}

function drawing(tag, props) {
  const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) one.setAttribute(name, value);
  return one;
}

export function spark(values) {
  const known = values.filter(finite);
  if (known.length < 2) return el("span", { class: "soft" }, "no data yet");
  const low = Math.min(...known), room = Math.max(...known) - low || 1;
  const told = `${number(known[0])} to ${number(known.at(-1))}`;
  const place = (y, k) => `${(100 * k) / (known.length - 1)},${22 - (20 * (y - low)) / room}`;
  const svg = drawing("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none",
    role: "img", "aria-label": `score from ${told}` });
  svg.append(drawing("polyline", { points: known.map(place).join(" ") }));
  return el("span", { title: told }, svg);
}

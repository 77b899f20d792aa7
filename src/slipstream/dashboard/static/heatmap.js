// Scores of the best trials by fold.
import { el, grid } from "./elements.js";
import { finite, number } from "./numbers.js";

function shade(t) {  // from -1, red, over white to 1, blue
  const less = (by) => Math.round(255 - by * Math.abs(t));
  return t < 0 ? `rgb(255 ${less(120)} ${less(170)})` : `rgb(${less(150)} ${less(70)} 255)`;
}

export function heatMap(trials, choose) {
  const all = trials.flatMap((one) => one.folds).filter(finite);
  const low = Math.min(...all), high = Math.max(...all), most = Math.max(-low, high, 1e-9);
  const signed = low < 0 && high > 0;  // red is below zero
  const place = (value) => (signed ? value / most : high > low ? (value - low) / (high - low) : 0);
  const cell = (value) => {
    const one = el("span", { class: "heat" }, number(value));
    if (finite(value)) one.style.background = shade(place(value));
    return one;
  };
  const button = (one) =>
    el("button", { class: "link", onclick: () => choose(one) }, `trial ${one.number}`);
  const folds = trials[0]?.folds.map((_, k) => `fold ${k}`) ?? [];
  const row = (one) => [button(one), number(one.score), ...one.folds.map(cell)];
  return grid(["trial", "score", ...folds], trials.map(row));
}

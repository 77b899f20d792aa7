// Numbers as pages write them.

export const finite = (value) => typeof value === "number" && Number.isFinite(value);

export function number(value) {
  if (!finite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e3) return Math.round(value).toLocaleString("en");
  return size > 0 && size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
}

export function short(value) {  // on axes
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${+(value / unit).toPrecision(4)}${name}`;
  }
  const rounded = +value.toPrecision(6);
  return size > 0 && size < 1e-3 ? rounded.toExponential() : String(rounded);
}

export function minute(second) {  // of UTC seconds
  const date = new Date(finite(second) ? 1000 * second : NaN);
  return Number.isNaN(+date) ? "–" : `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

export function clock(seconds) {
  if (!finite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds)), two = (part) => String(part).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

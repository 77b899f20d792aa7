// Tables that grow, by member, and what their columns are called.
import { columns } from "./chart.js";
import { finite } from "./numbers.js";

const KNOWN = new Map(Object.entries({ cpu_percent: ["CPU", "% of a core"],
  memory_gib: ["Memory", "GiB"], gpu_percent: ["GPU use", "%"], vram_gib: ["GPU memory", "GiB"],
  gpu_watts: ["GPU power", "W"], length: ["Episode length", "steps"],
  learning_rate: ["learning rate", ""] }));  // [title, unit]
const PLACE = ["member", "steps", "iteration", "updates", "wall", "seconds_env", "seconds_policy",
  "seconds_update", "seconds_validate", "failed", "score"];  // score has a picture of its own
const MOST = 1000;  // rows a member

export const unit = (column) => KNOWN.get(column)?.[1] ?? column.split("/").at(-1);
export const ofMachine = (column) => /^(cpu|memory|gpu|vram)_/.test(column);
export const drawnColumns = (all) => all.filter((column) => !PLACE.includes(column));
export function title(column) {
  if (column.startsWith("episode/")) return `${column.slice(8)}, recent episodes`;
  return KNOWN.get(column)?.[0] ?? column.replaceAll("_", " ");
}

export class Rows {  // thinned once they are many
  columns = [];
  members = new Map();

  add({ columns: names, rows }, split = false) {
    this.columns = names;
    const member = names.indexOf("member"), part = names.indexOf("split");
    for (const row of rows) {
      const apart = split && part >= 0 && row[part] !== "train";
      const key = apart ? `${row[member]} ${row[part]}` : row[member] ?? 0;
      if (!this.members.has(key)) this.members.set(key, []);
      const own = this.members.get(key);
      own.push(row);
      if (own.length <= MOST) continue;
      this.members.set(key, own.filter((_, k) => k % 2 || k === own.length - 1));
    }
  }
  clear() { this.members.clear(); }

  curves(column) {  // [steps, one list of values a member], and the members
    const x = this.columns.indexOf("steps"), y = this.columns.indexOf(column);
    const keys = [...this.members.keys()].sort((a, b) => (a > b ? 1 : -1));
    if (x < 0 || y < 0 || !keys.length) return [[[]], []];
    const known = (key) => this.members.get(key).filter((row) => finite(row[x]) && finite(row[y]));
    return [uPlot.join(keys.map((key) => columns(known(key), x, y))), keys];
  }
  mean(column) {  // [steps, values] over members, where several have one
    const [[steps, ...each]] = this.curves(column);
    const mean = (all) => all.reduce((a, b) => a + b, 0) / all.length;
    return [steps, steps.map((_, k) => mean(each.map((one) => one[k]).filter(finite)))];
  }
  rates() {  // [steps, steps a second of all members], between neighbouring rows
    const steps = this.columns.indexOf("steps"), wall = this.columns.indexOf("wall");
    const own = this.members.values().next().value ?? [], xs = [], ys = [];
    for (let k = 1; k < own.length; k += 1) {
      const seconds = own[k][wall] - own[k - 1][wall], done = own[k][steps] - own[k - 1][steps];
      if (!(seconds > 0 && done > 0)) continue;
      xs.push(own[k][steps]);
      ys.push((done / seconds) * this.members.size);
    }
    return [xs, ys];
  }
}

export class Tables {  // both of a run
  metrics = new Rows();
  evaluations = new Rows();

  take(name, facts) {
    if (name === "reset") this[facts.part]?.clear();
    else if (facts?.rows) this[name]?.add(facts, name === "evaluations");
  }
}

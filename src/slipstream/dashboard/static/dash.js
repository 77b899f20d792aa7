// The page that the address names. Each asks once for all there is, then follows what is new.
import { compare } from "./compare.js";
import { deployment } from "./deployment.js";
import { jobs, overview } from "./overview.js";
import { run } from "./run.js";
import { PAGE } from "./stream.js";
import { study } from "./study.js";

for (const link of document.querySelectorAll("nav a")) {
  if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page");
}
({ "": overview, jobs, run, study, deployment, compare })[PAGE]?.();

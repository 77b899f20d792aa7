// Colours of curves, in the page's light or dark.
export const PALETTE = {
  light: "#0072b2 #d55e00 #009e73 #a8578a #b07800 #2b8cc4 #5b616b #7a4fbf".split(" "),
  dark: "#6db8e8 #f0894a #3ecf9f #e29cc4 #f2bd4b #9fd3f2 #7d828c #bb9cf0".split(" "),
};
export const IN_THE_DARK = matchMedia("(prefers-color-scheme: dark)");
export const colour = (k) => PALETTE[IN_THE_DARK.matches ? "dark" : "light"][k % 8];
export const own = (name) =>  // of dash.css
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

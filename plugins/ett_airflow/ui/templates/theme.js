// The look that Airflow has right now: light or dark as its user chose, in its own colours. Same origin, so it may be read.
(() => {
  const root = document.documentElement;
  const colours = {
    "--page": "bg", "--card": "bg", "--ink": "fg", "--soft": "fg-muted", "--line": "border", "--faint": "border",
    "--track": "bg-muted",
  };
  let airflow = null;
  try {
    if (window.parent !== window) airflow = window.parent.document.documentElement;
  } catch {
    airflow = null; // another origin: the system's preference decides
  }
  const chosen = () => {
    for (const mode of ["dark", "light"]) if (airflow?.classList.contains(mode)) return mode;
    try {
      const kept = localStorage.getItem("theme");
      return kept === "dark" || kept === "light" ? kept : null;
    } catch {
      return null;
    }
  };
  const follow = () => {
    const mode = chosen();
    if (mode) root.dataset.theme = mode;
    else delete root.dataset.theme;
    const given = airflow && getComputedStyle(airflow);
    for (const [ours, theirs] of Object.entries(colours)) {
      const value = given?.getPropertyValue(`--chakra-colors-${theirs}`).trim();
      if (value) root.style.setProperty(ours, value);
    }
  };
  follow();
  if (airflow) new MutationObserver(follow).observe(airflow, { attributes: true, attributeFilter: ["class", "style"] });
  window.addEventListener("storage", follow);
})();

// Before the page is painted: the theme that the reader chose, or the system's.
(() => {
  try {
    const chosen = localStorage.getItem("waltz-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* without storage the system's theme holds */ }
})();

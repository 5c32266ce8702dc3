// Keeps the page as new as the job: fetches it again and puts its content in the place of the old one.
(() => {
  const everyMs = 5000;
  const live = document.getElementById("live");
  async function refresh() {
    try {
      const answer = await fetch("/", { cache: "no-store" });
      const text = await answer.text();
      if (!answer.ok) throw new Error(text);
      const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
      for (const open of document.querySelectorAll("details[open]")) {
        const same = fresh.querySelector(`#${CSS.escape(open.id)}`);
        if (same) same.open = true;
      }
      document.querySelector("main").replaceWith(fresh);
      live.textContent = "";
    } catch (error) {
      live.textContent = `This is what was known last: ${error.message}`;
    }
  }
  setInterval(() => document.hidden || refresh(), everyMs);
})();

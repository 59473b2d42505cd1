// Keeps the moving part of a run's page up to date until the run ends; then the report takes its place, once.
// A report that is still being made is asked for again until it is there; so is one from before there was a job.
(() => {
  const EVERY_MS = 3000;
  const moving = document.getElementById("moving");
  const stalled = document.getElementById("stalled");
  const report = document.getElementById("report");
  if (!report) return;

  const say = (text) => {
    stalled.textContent = text;
    stalled.hidden = !text;
  };
  const ask = async (address) => {
    const answer = await fetch(address, { credentials: "same-origin", cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) throw new Error("Your session has ended: sign in again.");
    if (answer.status === 404) throw new Error("This run is no longer known to Airflow.");
    if (!answer.ok) throw new Error("Airflow does not answer: these figures no longer move. Trying again.");
    return answer;
  };
  const renew = async () => {
    const html = await (await ask(report.dataset.report)).text();
    const isMade = !html.includes("data-pending");
    if (isMade || !report.querySelector("main:not([data-pending])")) report.innerHTML = html; // an older one stays
    if (!isMade) setTimeout(() => renew().catch((error) => say(error.message)), EVERY_MS);
  };
  let shown = "";
  const look = async () => {
    const answer = await ask(moving.dataset.figures);
    const html = await answer.text();
    if (html !== shown) moving.innerHTML = shown = html;
    const going = answer.headers.get("ETT-Run") !== "ended";
    const isOvertaken = moving.querySelector("#live-ett") && report.querySelector("[data-without-job]");
    if (!going || isOvertaken) await renew();
    return going;
  };
  const follow = async () => {
    let going = true;
    if (!document.hidden) {
      try {
        going = await look();
        say("");
      } catch (error) {
        say(error instanceof TypeError ? "Airflow cannot be reached: these figures no longer move. Trying again." : error.message);
      }
    }
    if (going) setTimeout(follow, EVERY_MS);
  };
  report.addEventListener("click", (event) => {
    if (event.target.id !== "renew") return;
    event.target.disabled = true;
    renew().catch((error) => {
      say(error.message);
      event.target.disabled = false;
    });
  });
  if (report.querySelector("[data-pending]")) setTimeout(() => renew().catch((error) => say(error.message)), EVERY_MS);
  if (moving.dataset.figures) setTimeout(follow, EVERY_MS);
})();

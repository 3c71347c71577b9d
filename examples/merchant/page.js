const result = document.querySelector("#result");

/** The last one that was begun here. */
let current = null;

document.querySelector("#popup").addEventListener("click", async () => {
  // Opened at once, within the click: what is opened later is blocked.
  const popup = window.open("", "verification", "width=480,height=760");
  if (popup === null) return tell("Allow this page to open a window, and try again.");
  const attempt = await begin("popup");
  if (attempt === null) return popup.close();
  popup.location = attempt.verification_url;

  const windowOrigin = new URL(attempt.verification_url).origin;
  const onMessage = ({ origin, source, data }) => {
    // Anybody may post a message here: only that window's, about this attempt, counts.
    if (origin !== windowOrigin || source !== popup) return;
    if (data?.type !== "phone_verification.result" || data.version !== 1) return;
    if (data.verification_id !== attempt.verification_id || data.state !== attempt.state) return;
    finish();
  };
  addEventListener("message", onMessage);
  // A person may close the window early, and finish on the phone all the same.
  const closed = setInterval(() => popup.closed && finish(), 500);

  function finish() {
    removeEventListener("message", onMessage);
    clearInterval(closed);
    confirm(attempt);
  }
});

document.querySelector("#redirect").addEventListener("click", async () => {
  const attempt = await begin("redirect");
  if (attempt !== null) location.assign(attempt.verification_url);
});

if (location.hash === "#returned") await confirm(null);

/** Null where it could not be begun, which has been told then. */
async function begin(style) {
  tell("…");
  const answer = await fetch("/attempts", { method: "POST", body: JSON.stringify({ style }) }).catch(
    () => null,
  );
  if (answer?.ok) {
    current = await answer.json();
    return current;
  }
  tell("It cannot be begun at the moment. Try again in a minute.");
  return null;
}

/**
 * What the window has said is only a reason to ask the own server, which reads the verification itself. Who has closed the
 * window is offered it again, and asked for until it is over.
 */
async function confirm(attempt) {
  const answer = await fetch("/attempts/mine").catch(() => null);
  const { status, phone } = answer?.ok ? await answer.json() : {};
  if (attempt !== current) return;
  const isOver = status !== undefined && status !== "pending";
  if (isOver) tell(phone ? `Verified: ${phone}` : `Not verified: ${status}`);
  else if (attempt === null) tell("Not known yet. Reload this page in a minute.");
  else if (status === undefined) tell("It cannot be read at the moment. It is tried again.");
  else offer(attempt.verification_url);
  if (attempt !== null && !isOver) setTimeout(confirm, 3_000, attempt);
}

function offer(url) {
  // Made once: under a finger it must not change.
  if (result.querySelector("a") !== null) return;
  const link = document.createElement("a");
  Object.assign(link, { href: url, target: "_blank", textContent: "Open the window again" });
  result.replaceChildren("Not verified yet. ", link);
}

function tell(text) {
  result.textContent = text;
}

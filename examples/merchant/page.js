const result = document.querySelector("#result");
const buttons = document.querySelectorAll("button");

/** The session's attempt, if it has one: from before a reload, or from another tab. */
const sessions = {};

/** The attempt that the page waits for: at first the session's, then the one started last; null while one is being started. */
let current = sessions;

/** The popup that was opened last. */
let lastPopup = null;

/** The next question to the shop about the current attempt. */
let nextQuestion = null;

const cannotStart = "The verification cannot be started at the moment. Try again in a minute.";

document.querySelector("#popup").addEventListener("click", async () => {
  // Opened immediately, within the click: browsers block popups that are opened later.
  // Another one each time: Firefox would leave a popup that is still open behind this page.
  lastPopup?.close();
  // None on phones and tablets, where the browser inside an app may open the empty popup in place of this page.
  const popup = matchMedia("(pointer: coarse)").matches
    ? null
    : window.open("", "_blank", "width=480,height=760");
  lastPopup = popup;
  const attempt = await begin("popup");
  if (attempt === null) return popup?.close();
  // Null where the browser lets no popup open, too: then in place of this page, and back by return_url.
  (popup ?? window).location = attempt.verification_url;
  if (popup === null) return;

  const windowOrigin = new URL(attempt.verification_url).origin;
  const onMessage = ({ origin, source, data }) => {
    // Any page may post a message here: only a message from that window, about this attempt, counts.
    if (origin !== windowOrigin || source !== popup) return;
    if (data?.type !== "phone_verification.result" || data.version !== 1) return;
    if (data.verification_id !== attempt.verification_id || data.state !== attempt.state) return;
    finish();
  };
  addEventListener("message", onMessage);
  // A person may close the window early and still finish on the phone.
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

// After a reload, this page does not know the popup, and so listens to no message of it.
await confirm(sessions);

/** Starts an attempt. Null if that failed; the page then shows a message. */
async function begin(style) {
  const before = current;
  current = null;
  tell("…");
  // Of two attempts begun by a double click, the one that the session has in the end may not be the one that the person sees.
  const focused = document.activeElement;
  for (const button of buttons) button.disabled = true;
  const answer = await fetch("/attempts", { method: "POST", body: JSON.stringify({ style }) }).catch(
    () => null,
  );
  for (const button of buttons) button.disabled = false;
  // A disabled button loses the focus, and a keyboard would have to begin at the top again.
  if (document.activeElement === document.body) focused.focus();
  if (answer?.ok) {
    current = await answer.json();
    return current;
  }
  tell(cannotStart);
  // The one before may still be finished, on the phone.
  current = before;
  confirm(before);
  return null;
}

/**
 * A message from the window only triggers a request to the shop's own server, which reads the verification itself. While the
 * verification is pending, the page offers to open the window again, and keeps asking the server until it is over.
 */
async function confirm(attempt) {
  const answer = await fetch("/attempts/mine").catch(() => null);
  const { status, phone, verification_url } = answer?.ok ? await answer.json() : {};
  if (attempt !== current) return;
  // Without its cookie, or after a restart, the shop does not know the attempt, however often it is asked.
  if (status === "none") {
    const isMissing = attempt !== sessions || location.hash === "#returned";
    return isMissing && tell("The shop does not know this attempt. Allow its cookies, and start again.");
  }
  const isOver = status !== undefined && status !== "pending";
  if (phone) tell(`Verified: ${phone}`);
  else if (status === "verified") tell("The verified phone was erased. Verify it again.");
  else if (isOver) tell(`Not verified: ${status}`);
  else if (status === undefined) tellUnlessFailed("The result cannot be read at the moment. Trying again.");
  else offer(verification_url);
  clearTimeout(nextQuestion);
  if (!isOver) nextQuestion = setTimeout(confirm, 3_000, attempt);
}

function offer(url) {
  // Created only once: the link must not be replaced while a person is clicking it.
  const offered = result.querySelector("a");
  if (offered !== null) {
    // Another tab may have started another attempt, which the session has now.
    offered.href = url;
    return;
  }
  const link = document.createElement("a");
  Object.assign(link, { href: url, target: "_blank", textContent: "Open the window again" });
  tellUnlessFailed("Not verified yet.");
  result.append(" ", link);
}

/** That the next attempt could not be started stays on the page while the one before goes on. */
function tellUnlessFailed(text) {
  if (!result.textContent.startsWith(cannotStart)) tell(text);
}

function tell(text) {
  // Setting the same text again would make a screen reader repeat it.
  if (result.textContent !== text) result.textContent = text;
}

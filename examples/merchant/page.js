const result = document.querySelector("#result");

document.querySelector("#popup").addEventListener("click", async () => {
  // Opened at once, within the click: what is opened later is blocked.
  const popup = window.open("", "verification", "width=480,height=760");
  const attempt = await begin("popup");
  popup.location = attempt.verification_url;

  const windowOrigin = new URL(attempt.verification_url).origin;
  const onMessage = async ({ origin, source, data }) => {
    // Anybody may post a message here: only that window's, about this attempt, counts.
    if (origin !== windowOrigin || source !== popup) return;
    if (data?.type !== "phone_verification.result" || data.version !== 1) return;
    if (data.verification_id !== attempt.verification_id || data.state !== attempt.state) return;
    removeEventListener("message", onMessage);
    await confirm();
  };
  addEventListener("message", onMessage);
});

document.querySelector("#redirect").addEventListener("click", async () => {
  location.assign((await begin("redirect")).verification_url);
});

if (location.hash === "#returned") await confirm();

async function begin(style) {
  result.textContent = "…";
  const answer = await fetch("/attempts", { method: "POST", body: JSON.stringify({ style }) });
  return answer.json();
}

/** What the window has said is only a reason to ask the own server, which reads the verification itself. */
async function confirm() {
  const answer = await fetch("/attempts/mine");
  const { status, phone } = await answer.json();
  result.textContent = phone ? `Verified: ${phone}` : `Not verified: ${status}`;
}

/** The window's script: it follows the verification, counts down, copies, and finds the way back. */

import type { PlayedReceipt, WindowState } from "./state.ts";

/** Beats come every 15 seconds. */
const silenceMs = 40_000;
const askEveryMs = 3_000;
/** Where it is refused or gets no answer, each next time later, and no sooner than the server wants it. */
const askAtMostEveryMs = 30_000;

/** Long enough to read the result. */
const returnDelayMs = 3_000;

/** Of the address of a page from which nobody is to be sent on. */
const stay = "#stay";

const main = document.querySelector<HTMLElement>("main[data-state]");
if (main) open(main);

function open(main: HTMLElement): void {
  const find = <E extends HTMLElement>(selector: string) => main.querySelector<E>(selector);
  const address = location.pathname;
  const fromQr = main.dataset.via === "qr";
  let state = JSON.parse(main.dataset.state ?? "{}") as WindowState;
  let endsAt = performance.now() + state.remainingMs;
  let finished = false;
  /** Nothing is heard of the service. */
  let isCutOff = false;

  find("[data-without-script]")?.remove();
  if (matchMedia("(pointer: coarse) and (hover: none)").matches) show("[data-on-this-device]");
  copyButtons(main);
  playedPhone(address);
  countDown();
  if (state.status === "pending") follow();
  else finish(false);

  function apply(next: WindowState): void {
    if (finished) return;
    // An answer that is late tells too long a time, and this clock stands still while the device sleeps.
    endsAt = Math.min(endsAt, performance.now() + next.remainingMs);
    // What is asked for and what the stream brings overtake each other.
    if (next.status === "pending" && noticedAt(next) <= noticedAt(state)) return;
    state = next;
    if (state.status === "pending") showHint();
    else finish(true);
  }

  function noticedAt({ version }: WindowState): number {
    return Number(version.slice(version.indexOf(".") + 1));
  }

  function showHint(): void {
    const region = find("[data-hint]");
    const text = find<HTMLTemplateElement>(`[data-hint-text="${state.hint}"]`)?.content.textContent ?? "";
    if (!region) return;
    // The same reason again is told again.
    region.textContent = "";
    setTimeout(() => {
      region.textContent = text;
    }, 50);
  }

  /** `live`: it happened before the person's eyes. */
  function finish(live: boolean): void {
    finished = true;
    for (const section of main.querySelectorAll<HTMLElement>("[data-status]")) {
      section.hidden = section.dataset.status !== state.status;
      if (section.hidden) continue;
      document.title = section.dataset.title ?? document.title;
      if (live) section.querySelector("h1")?.focus();
    }
    const line = find(".phone");
    if (line) line.hidden = state.phone === null;
    const phone = find("[data-phone]");
    const carrier = find("[data-carrier]");
    if (phone) phone.textContent = state.phone;
    if (carrier) carrier.textContent = state.carrier;
    show("[data-after]");
    leave(live);
  }

  /** To whoever opened the window, or else back to where the person came from. */
  function leave(live: boolean): void {
    const opener = window.opener as Window | null;
    if (opener && state.notice) {
      // Whether anybody of that origin is there to hear it cannot be known: the way back stays, beside the one button.
      opener.postMessage(state.notice.message, state.notice.origin);
      wayBack()?.classList.remove("button");
      show("[data-may-close]");
      show("[data-close]")?.addEventListener("click", () => window.close());
      return;
    }
    const link = wayBack();
    if (!link) {
      if (!fromQr) show("[data-may-close]");
      return;
    }
    if (fromQr) return;
    if (!live && cameBack()) {
      stayInOtherLanguage();
      return;
    }
    show("[data-returning]");
    const timer = setTimeout(() => link.click(), returnDelayMs);
    // Whoever goes at once goes once: a second time would cut off the page that is on its way.
    link.addEventListener("click", () => clearTimeout(timer));
  }

  function wayBack(): HTMLAnchorElement | null {
    const link = find<HTMLAnchorElement>("[data-return]");
    if (!link || !state.returnUrl) return null;
    link.href = state.returnUrl;
    link.hidden = false;
    link.addEventListener("click", () => history.replaceState({ left: true }, ""));
    return link;
  }

  function show(selector: string): HTMLElement | null {
    const element = find(selector);
    if (element) element.hidden = false;
    return element;
  }

  function countDown(): void {
    const remaining = find("[data-remaining]");
    if (!remaining) return;
    const tick = () => {
      const left = Math.max(0, Math.ceil((endsAt - performance.now()) / 1000));
      remaining.textContent = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
      sayConnection();
    };
    tick();
    show("[data-countdown]");
    find("[data-until]")?.remove();
    const timer = setInterval(() => (finished ? clearInterval(timer) : tick()), 500);
  }

  /** While nothing is heard; past the expiry what is shown is most likely not so any more. */
  function sayConnection(): void {
    const { reconnecting = "", timeProbablyUp = "" } = main.dataset;
    const text = !isCutOff || finished ? "" : performance.now() < endsAt ? reconnecting : timeProbablyUp;
    const connection = find("[data-connection]");
    // What is put in again would be read out again.
    if (connection && connection.textContent !== text) connection.textContent = text;
  }

  function setCutOff(cutOff: boolean): void {
    isCutOff = cutOff;
    sayConnection();
  }

  /**
   * Over the stream where there is one. It comes again by itself after a loss, and brings the state first; while nothing is
   * heard, the state is asked for.
   */
  function follow(): void {
    let stream: EventSource | undefined;
    let heardAt = Number.NEGATIVE_INFINITY;
    let gapMs = askEveryMs;
    let askAgainAt = Number.NEGATIVE_INFINITY;
    let isAsking = false;
    const heard = () => {
      heardAt = performance.now();
      answered();
    };
    const answered = () => {
      gapMs = askEveryMs;
      setCutOff(false);
    };
    const connect = () => {
      stream?.close();
      stream = new EventSource(`${address}/events`);
      stream.addEventListener("beat", heard);
      stream.addEventListener("state", (event) => {
        heard();
        apply(JSON.parse((event as MessageEvent<string>).data) as WindowState);
        if (finished) stream?.close();
      });
      stream.addEventListener("error", () => {
        heardAt = Number.NEGATIVE_INFINITY;
      });
    };
    const ask = async () => {
      if (isAsking) return;
      isAsking = true;
      let waitMs = 0;
      try {
        const answer = await fetch(`${address}/status`, { cache: "no-store" });
        // Its day is over. Another's 404 is that of a proxy which has lost the service for a moment.
        if (answer.status === 404 && answer.headers.get("x-request-id")?.startsWith("req_"))
          location.reload();
        if (answer.ok) {
          answered();
          apply((await answer.json()) as WindowState);
        } else waitMs = refused(Number(answer.headers.get("retry-after")) * 1000);
      } catch {
        waitMs = refused(0);
      }
      askAgainAt = performance.now() + waitMs;
      isAsking = false;
    };
    const refused = (wantedMs: number) => {
      setCutOff(true);
      gapMs = Math.min(gapMs * 1.5, askAtMostEveryMs);
      return Math.max(wantedMs || 0, gapMs);
    };
    const reconnect = () => {
      connect();
      void ask();
    };
    // Browsers have six connections to a host over HTTP/1.1: a window that nobody looks at does not keep one.
    const isSeen = () => document.visibilityState === "visible";
    if (isSeen()) connect();
    const timer = setInterval(() => {
      if (finished) {
        clearInterval(timer);
        stream?.close();
        return;
      }
      const now = performance.now();
      if (now - heardAt < silenceMs || now < askAgainAt) return;
      void ask();
      if (
        isSeen() &&
        stream?.readyState !== EventSource.OPEN &&
        stream?.readyState !== EventSource.CONNECTING
      )
        connect();
    }, askEveryMs);
    addEventListener("offline", () => {
      heardAt = Number.NEGATIVE_INFINITY;
      if (!finished) setCutOff(true);
    });
    addEventListener("online", () => {
      if (!finished && isSeen()) reconnect();
    });
    // A page that was asleep may have missed everything.
    document.addEventListener("visibilitychange", () => {
      if (finished) return;
      if (isSeen()) reconnect();
      else {
        stream?.close();
        heardAt = Number.NEGATIVE_INFINITY;
      }
    });
  }
}

/**
 * The person was sent on from here, and came back: to send them on again would be a trap. Told by the history's entry,
 * since Back and Forward also lead to a window that nobody has left by its way back.
 */
function cameBack(): boolean {
  return (history.state as { readonly left?: boolean } | null)?.left === true || location.hash === stay;
}

/** The other language's page is an entry of its own. */
function stayInOtherLanguage(): void {
  const link = document.querySelector<HTMLAnchorElement>("footer a");
  if (link) link.hash = stay;
}

function copyButtons(main: HTMLElement): void {
  const said = main.querySelector("[data-said]");
  for (const button of main.querySelectorAll<HTMLButtonElement>("[data-copy]")) {
    const value = button.parentElement?.querySelector<HTMLElement>("[data-value]");
    if (!value) continue;
    const label = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const isCopied = await copy(value);
      const { copied = "", notCopied = "" } = main.dataset;
      if (isCopied) button.textContent = copied;
      if (said) said.textContent = isCopied ? copied : notCopied;
      said?.classList.toggle("unseen", isCopied);
      setTimeout(() => {
        button.textContent = label;
        // What is to be done by hand stays to be read.
        if (said && isCopied) said.textContent = "";
      }, 2_000);
    });
  }
}

async function copy(value: HTMLElement): Promise<boolean> {
  const text = value.textContent ?? "";
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without https there is no clipboard; what is selected can be copied by hand.
    getSelection()?.selectAllChildren(value);
    return document.execCommand("copy");
  }
}

function playedPhone(address: string): void {
  const form = document.querySelector<HTMLFormElement>("aside form");
  if (!form) return;
  const receipt = form.querySelector("[data-receipt]");
  const text = form.querySelector("textarea");
  const presets = form.querySelector<HTMLElement>(".presets");
  if (presets) presets.hidden = false;
  for (const preset of form.querySelectorAll<HTMLButtonElement>("[data-preset]")) {
    preset.addEventListener("click", () => {
      if (text) text.value = preset.dataset.preset ?? "";
    });
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = new URLSearchParams();
    for (const [name, value] of new FormData(form)) body.append(name, String(value));
    let message = form.dataset.failed ?? "";
    try {
      const lang = document.documentElement.lang;
      const answer = await fetch(`${address}/messages?lang=${lang}`, {
        method: "POST",
        body,
        headers: { accept: "application/json" },
      });
      if (answer.ok) message = ((await answer.json()) as PlayedReceipt).message;
    } catch {
      // Told as what could not be sent.
    }
    if (receipt) receipt.textContent = message;
  });
}

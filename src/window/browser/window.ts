/** The window's script: follows the verification, counts down, copies values, and returns the user to the merchant. */

import type { SimulatedReceipt, WindowState } from "./state.ts";

/**
 * Beats arrive every 15 seconds; a stream silent for longer than this counts as broken: the window polls, and opens another one
 * each time as long has passed again. The browser does not notice when the network has changed and drops the stream's packets.
 * Nor those of a poll, which it would wait for up to five minutes: one unanswered for as long is given up.
 */
const silenceMs = 40_000;
const askEveryMs = 3_000;
/** Maximum polling interval: each refusal or error lengthens the interval; a longer Retry-After is respected. */
const askAtMostEveryMs = 30_000;

/** Time to read the result before returning. */
const returnDelayMs = 3_000;

/** After this time without a hint, the window advises what to check. */
const adviseAfterMs = 60_000;

/** The service expires within a second. Whoever is still pending this long after the expiry waits for its database. */
const overdueMs = 5_000;

/** When screen readers say that the time is running out: they do not follow the countdown. */
const runningOutMs = 60_000;

/** How long a copy is confirmed. */
const copiedMs = 2_000;

/** URL fragment of a page that must not return the user automatically. */
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
  /** The service is currently not reachable. */
  let isCutOff = false;

  find("[data-without-script]")?.remove();
  // Not whether it can hover: Samsung's phones say so of their touch screens.
  if (matchMedia("(pointer: coarse)").matches) show("[data-on-this-device]");
  copyButtons(main);
  simulatedPhone(address);
  countDown();
  if (state.status === "pending") {
    follow(address, { apply, isFinished: () => finished, setCutOff });
    adviseLater();
  } else finish(false);

  function apply(next: WindowState): void {
    if (finished) return;
    // Only ever shortened: a response that arrives late carries too long a time, and `performance.now()` stands still while the
    // device sleeps.
    endsAt = Math.min(endsAt, performance.now() + next.remainingMs);
    // Poll responses and stream events overtake each other: an older state must not replace a newer one.
    if (next.status === "pending" && noticedAt(next) <= noticedAt(state)) return;
    state = next;
    if (state.status === "pending") showHint();
    else finish(true);
  }

  function noticedAt({ version }: WindowState): number {
    return Number(version.slice(version.indexOf(".") + 1));
  }

  function showHint(): void {
    const advice = find("[data-advice]");
    if (advice) advice.textContent = "";
    const text = find<HTMLTemplateElement>(`[data-hint-text="${state.hint}"]`)?.content.textContent ?? "";
    announce(find("[data-hint]"), text);
  }

  /** Says what may be wrong with a message of which the service knows nothing. A hint says more, and replaces it. */
  function adviseLater(): void {
    const advice = find("[data-advice]");
    const text = find<HTMLTemplateElement>("[data-advice-text]")?.content.textContent ?? "";
    if (!advice) return;
    setTimeout(() => {
      if (state.hint === null) advice.textContent = text;
    }, adviseAfterMs);
  }

  /** `live`: the change happened while the window was open. */
  function finish(live: boolean): void {
    finished = true;
    for (const section of main.querySelectorAll<HTMLElement>("[data-status]")) {
      section.hidden = section.dataset.status !== state.status;
      if (section.hidden) continue;
      document.title = section.dataset.title ?? document.title;
      if (!live) continue;
      // WebKit does not scroll to what is focused if the page, getting shorter, has scrolled by itself.
      scrollTo(0, 0);
      section.querySelector("h1")?.focus();
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

  /** Notifies the opener if there is one, else returns the user to the merchant's page. */
  function leave(live: boolean): void {
    const opener = window.opener as Window | null;
    // An Android web view without several windows opens a popup in place of the page that opens it: the window is then its own
    // opener, and nobody else hears of the result.
    if (opener && opener !== window && state.notice) {
      // Whether a page of that origin receives the message cannot be known, so the return link stays beside the close button.
      opener.postMessage(state.notice.message, state.notice.origin);
      returnLink()?.classList.remove("button");
      show("[data-may-close]");
      show("[data-close]")?.addEventListener("click", () => window.close());
      return;
    }
    const link = returnLink();
    if (!link) {
      if (!fromQr) show("[data-may-close]");
      return;
    }
    if (fromQr) return;
    if (hasReturnedBefore()) {
      stayInOtherLanguage();
      return;
    }
    const returning = show("[data-returning]");
    if (live) announce(returning, returning?.textContent ?? "");
    const timer = setTimeout(() => link.click(), returnDelayMs);
    // A click cancels the timer: a second navigation would interrupt the one in progress, or follow one in a new tab.
    const cancel = (event: MouseEvent) => {
      if (event.button > 1) return;
      clearTimeout(timer);
      const inNewTab = event.button === 1 || event.ctrlKey || event.metaKey || event.shiftKey;
      if (inNewTab && returning) returning.hidden = true;
    };
    link.addEventListener("click", cancel);
    // The middle button.
    link.addEventListener("auxclick", cancel);
    // Back may restore the page as it was when it was left, without loading it.
    addEventListener("pageshow", () => {
      if (!hasReturnedBefore()) return;
      if (returning) returning.hidden = true;
      stayInOtherLanguage();
    });
  }

  function returnLink(): HTMLAnchorElement | null {
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
    let isAnnounced = false;
    const tick = () => {
      const left = Math.max(0, Math.ceil((endsAt - performance.now()) / 1000));
      remaining.textContent = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
      if (left > 0 && left * 1000 < runningOutMs && !isAnnounced) {
        isAnnounced = true;
        announce(find("[data-running-out]"), main.dataset.lastMinute ?? "");
      }
      showConnection();
    };
    tick();
    show("[data-countdown]");
    find("[data-until]")?.remove();
    const timer = setInterval(() => (finished ? clearInterval(timer) : tick()), 500);
  }

  /**
   * Shows whether the connection is lost; past the expiry, that the status shown is probably outdated: also with a connection, as
   * the stream goes on while the service's database is away.
   */
  function showConnection(): void {
    const { reconnecting = "", timeProbablyUp = "" } = main.dataset;
    const isTimeUp = performance.now() >= endsAt + (isCutOff ? 0 : overdueMs);
    const text = isTimeUp ? timeProbablyUp : isCutOff ? reconnecting : "";
    const connection = find("[data-connection]");
    // Setting the same text again would make a screen reader repeat it.
    if (connection && connection.textContent !== text) connection.textContent = text;
  }

  function setCutOff(cutOff: boolean): void {
    isCutOff = cutOff;
    showConnection();
  }
}

/**
 * Follows the state over the event stream where possible. The stream reconnects by itself and delivers the current state
 * first; while nothing is received, the state is polled.
 */
function follow(
  address: string,
  {
    apply,
    isFinished,
    setCutOff,
  }: {
    readonly apply: (next: WindowState) => void;
    readonly isFinished: () => boolean;
    readonly setCutOff: (cutOff: boolean) => void;
  },
): void {
  let stream: EventSource | undefined;
  let lastEventAt = Number.NEGATIVE_INFINITY;
  /** When a stream was opened, or broke: the browser then opens it again, after the pause that the service asks for. */
  let begunAt = Number.NEGATIVE_INFINITY;
  let gapMs = askEveryMs;
  let nextPollAt = Number.NEGATIVE_INFINITY;
  /** Until when the service has asked not to be called, by `Retry-After`. */
  let retryAfterUntil = Number.NEGATIVE_INFINITY;
  let isAsking = false;
  const onStreamEvent = () => {
    lastEventAt = performance.now();
    answered();
  };
  const answered = () => {
    gapMs = askEveryMs;
    setCutOff(false);
  };
  const connect = () => {
    stream?.close();
    begunAt = performance.now();
    try {
      stream = new EventSource(`${address}/events`);
    } catch {
      // A browser or an extension without streams: the window polls.
      return;
    }
    stream.addEventListener("beat", onStreamEvent);
    stream.addEventListener("state", (event) => {
      onStreamEvent();
      apply(JSON.parse((event as MessageEvent<string>).data) as WindowState);
      if (isFinished()) stream?.close();
    });
    stream.addEventListener("error", () => {
      lastEventAt = Number.NEGATIVE_INFINITY;
      begunAt = performance.now();
    });
  };
  const ask = async () => {
    if (isAsking) return;
    isAsking = true;
    let waitMs = 0;
    // Browsers of early 2018 have none.
    const request = "AbortController" in window ? new AbortController() : null;
    const timeout = setTimeout(() => request?.abort(), silenceMs);
    try {
      const answer = await fetch(`${address}/status`, {
        cache: "no-store",
        signal: request?.signal ?? null,
      });
      // The window is no longer available. A 404 without our request id comes from a proxy that has lost the service for a
      // moment.
      if (answer.status === 404 && answer.headers.get("x-request-id")?.startsWith("req_")) location.reload();
      if (answer.ok) {
        // A network that first wants a login may answer every request with a page.
        const next = (await answer.json()) as WindowState;
        answered();
        apply(next);
      } else {
        const wantedMs = Number(answer.headers.get("retry-after")) * 1000 || 0;
        retryAfterUntil = performance.now() + wantedMs;
        waitMs = Math.max(wantedMs, refused());
      }
    } catch {
      waitMs = refused();
    }
    clearTimeout(timeout);
    nextPollAt = performance.now() + waitMs;
    isAsking = false;
  };
  const refused = () => {
    // Meanwhile a stream may have been heard.
    setCutOff(performance.now() - lastEventAt >= silenceMs);
    gapMs = Math.min(gapMs * 1.5, askAtMostEveryMs);
    return gapMs;
  };
  const reconnect = () => {
    // The timer asks as soon as it may.
    if (performance.now() < retryAfterUntil) return;
    connect();
    void ask();
  };
  // Browsers open at most six connections to a host over HTTP/1.1, so a hidden window must not keep one.
  const isSeen = () => document.visibilityState === "visible";
  if (isSeen()) connect();
  const timer = setInterval(() => {
    if (isFinished()) {
      clearInterval(timer);
      stream?.close();
      return;
    }
    const now = performance.now();
    if (now - lastEventAt < silenceMs || now < nextPollAt) return;
    void ask();
    const isOver = stream === undefined || stream.readyState === stream.CLOSED;
    if (isSeen() && (isOver || now - begunAt >= silenceMs)) connect();
  }, askEveryMs);
  addEventListener("offline", () => {
    lastEventAt = Number.NEGATIVE_INFINITY;
    setCutOff(true);
  });
  addEventListener("online", () => {
    if (!isFinished() && isSeen()) reconnect();
  });
  // A page that was suspended may have missed any number of events.
  document.addEventListener("visibilitychange", () => {
    if (isFinished()) return;
    if (isSeen()) reconnect();
    else {
      stream?.close();
      lastEventAt = Number.NEGATIVE_INFINITY;
    }
  });
}

/**
 * Screen readers announce what is put into a live region that is shown already: neither what is shown together with its region,
 * nor a text that replaces the same.
 */
function announce(region: HTMLElement | null, text: string): void {
  if (!region) return;
  region.textContent = "";
  setTimeout(() => {
    region.textContent = text;
  }, 50);
}

/**
 * Whether the user was returned to the merchant from here and came back: returning them again would trap them. It is recorded
 * in the history entry, since Back and Forward also lead to windows that nobody left by the return link.
 */
function hasReturnedBefore(): boolean {
  return (history.state as { readonly left?: boolean } | null)?.left === true || location.hash === stay;
}

/** The page in the other language is a separate history entry, so its link carries the fragment. */
function stayInOtherLanguage(): void {
  const link = document.querySelector<HTMLAnchorElement>("footer a");
  if (link) link.hash = stay;
}

function copyButtons(main: HTMLElement): void {
  const feedback = main.querySelector<HTMLElement>("[data-feedback]");
  let clearing: ReturnType<typeof setTimeout> | undefined;
  for (const button of main.querySelectorAll<HTMLButtonElement>("[data-copy]")) {
    const value = button.parentElement?.querySelector<HTMLElement>("[data-value]");
    if (!value) continue;
    const label = button.textContent;
    let resetting: ReturnType<typeof setTimeout> | undefined;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const isCopied = await copy(value);
      const { copied = "", notCopied = "" } = main.dataset;
      if (isCopied) button.textContent = copied;
      announce(feedback, isCopied ? copied : notCopied);
      feedback?.classList.toggle("unseen", isCopied);
      clearTimeout(resetting);
      resetting = setTimeout(() => {
        button.textContent = label;
      }, copiedMs);
      // The instruction to copy by hand stays visible.
      clearTimeout(clearing);
      if (isCopied) {
        clearing = setTimeout(() => {
          if (feedback) feedback.textContent = "";
        }, copiedMs);
      }
    });
  }
}

async function copy(value: HTMLElement): Promise<boolean> {
  const text = value.textContent ?? "";
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without https there is no clipboard API, and many Android web views refuse it; the selected text can be copied by hand.
    getSelection()?.selectAllChildren(value);
    return document.execCommand("copy");
  }
}

function simulatedPhone(address: string): void {
  const form = document.querySelector<HTMLFormElement>("aside form");
  if (!form) return;
  const receipt = form.querySelector<HTMLElement>("[data-receipt]");
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
      if (answer.ok) message = ((await answer.json()) as SimulatedReceipt).message;
    } catch {
      // Reported as a message that could not be sent.
    }
    announce(receipt, message);
  });
}

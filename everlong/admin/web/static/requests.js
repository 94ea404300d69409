// Requests to this server. Changes are JSON, which other origins cannot send without a preflight.

const JOB_MS = 1000;

// Sends a change: an object, or JSON. Returns the JSON of the response, or throws an Error with a message for people.
export async function send(url, body, { signal } = {}) {
  let response;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: typeof body === "string" ? body : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Check that `everlong serve` is running, and try again.");
  }
  toLoginIfNeeded(response);
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(describeError(answer, response.status));
  return answer;
}

// Waits for a job, and calls `onProgress` with its progress. Returns the ended job.
export async function waitForJob(job, onProgress) {
  let now = job;
  while (now && now.state === "running") {
    onProgress(now.text);
    await new Promise((next) => setTimeout(next, JOB_MS));
    now = await getJson(`/api/v1/jobs/${now.id}`);
  }
  if (now && now.state === "failed") throw new Error(now.error.message);
  return now;
}

async function getJson(url) {
  const response = await fetch(url, { headers: { Accept: "application/json" }, cache: "no-store" });
  toLoginIfNeeded(response);
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(describeError(answer, response.status));
  return answer;
}

// Returns a fragment of a page as text.
export async function loadFragment(url, { signal } = {}) {
  const response = await fetch(url, { headers: { Accept: "text/html" }, signal });
  toLoginIfNeeded(response);
  const text = await response.text();
  if (!response.ok) throw new Error(new DOMParser().parseFromString(text, "text/html").body.textContent.trim());
  return text;
}

export function toLoginIfNeeded(response) {
  const isSentAway = response.redirected && new URL(response.url).pathname === "/login";
  if (response.status !== 401 && !isSentAway) return;
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  throw new Error("Log in again.");
}

function describeError(answer, status) {
  if (answer && answer.error && answer.error.message) return answer.error.message;
  if (answer && answer.detail) return typeof answer.detail === "string" ? answer.detail : "A field is invalid.";
  return `The server rejected the request (${status}).`;
}

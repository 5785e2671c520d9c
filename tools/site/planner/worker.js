// Runs the planner's Python beside the page, so that the page stays responsive.
// Says {loaded: bytes}, then {ready: true}; answers each question with {answer}; {failed: why} if it cannot.
import { loadPyodide } from "./pyodide/pyodide.mjs";

// Pyodide fetches its files by itself: count the bytes as they pass.
let loaded = 0;
const plainFetch = self.fetch;
self.fetch = async (...asked) => {
  const response = await plainFetch(...asked);
  const counted = new TransformStream({
    transform(chunk, out) {
      loaded += chunk.byteLength;
      postMessage({ loaded });
      out.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(counted), response);
};

async function file(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name} is not there (${response.status})`);
  return new Uint8Array(await response.arrayBuffer());
}

// Python's errors are whole tracebacks.
const lastLine = (error) => error.message.trim().split("\n").pop();

try {
  const [python, planner, answers] = await Promise.all([loadPyodide(), file("planner.zip"), file("answers.py")]);
  python.unpackArchive(planner, "zip", { extractDir: "/planner" });
  python.FS.writeFile("/planner/answers.py", answers);
  python.runPython("import sys; sys.path.insert(0, '/planner')");
  const { answer } = python.pyimport("answers");
  const reply = (question) => {
    try {
      postMessage({ answer: JSON.parse(answer(JSON.stringify(question))) });
    } catch (error) {
      postMessage({ failed: lastLine(error) });
    }
  };
  onmessage = ({ data }) => reply(data);
  postMessage({ ready: true }); // before, the page asks nothing
} catch (error) {
  postMessage({ failed: lastLine(error) });
}

/**
 * Records for ever, as agents do, and says each trajectory that was acknowledged. Arguments: url, spool, agent, and
 * `leave` to end after ten without closing the recorder. The key comes by the environment.
 */
import { Hindsight } from "../src/index.js";

const [url = "", spool = "", agent = "", how] = process.argv.slice(2);
const recorder = await new Hindsight({ url, key: process.env["KEY"] }).recorder({ spool, onProblem: () => undefined });
for (let number = 0; how !== "leave" || number < 10; number += 1) {
  const trajectory = recorder.startTrajectory(agent);
  trajectory.step({ agentBalance: number }).completeStep({ actionType: "BUY", success: true });
  console.log(await trajectory.endTrajectory());
}

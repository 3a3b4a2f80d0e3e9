export { HindsightError } from "./errors.js";
export { Hindsight, type HindsightOptions } from "./hindsight.js";
export type { Decider, ShownLesson, StoreLesson, RetrieveLessons, LessonsOptions } from "./lessons.js";
export { policyNamed, withLessons, type LessonKind, type LessonsPolicy, type Message, type Wording } from "./lesson-prompts.js";
export { promptMessages, type CurrentPrompt, type PromptsOptions } from "./prompts.js";
export type { Outcome, Question } from "./advice.js";
export type { RewardEntry, RewardQuery, ToJudge } from "./rewards.js";
export type { StartTraining, TrainingStatus } from "./training.js";
export type { Recorder, RecorderOptions } from "./recorder/recorder.js";
export type {
  Action,
  EndOptions,
  EnvironmentState,
  LLMCall,
  StartOptions,
  StepRecording,
  TrajectoryRecording,
} from "./recorder/recording.js";
export {
  LONGEST_EPISODE,
  RLInterface,
  type Applied,
  type Environment,
  type Episode,
  type RLOptions,
  type SelectedMutation,
} from "./rl/interface.js";
export type { ServerOptions } from "./rl/server-process.js";
export {
  MUTATIONS,
  type Distribution,
  type Experience,
  type Loaded,
  type Mutation,
  type Saved,
  type SelectedAction,
  type State,
  type Stats,
  type StoredExperience,
  type Update,
} from "./rl/service.js";
export { RLTrainer, type Statistics, type TrainerOptions } from "./rl/trainer.js";

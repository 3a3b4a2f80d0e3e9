export type { Outcome, Question } from "./advice.js";
export { HindsightError } from "./errors.js";
export { Hindsight, type HindsightOptions } from "./hindsight.js";
export {
  type LessonKind,
  type LessonsPolicy,
  type Message,
  policyNamed,
  type Wording,
  withLessons,
} from "./lesson-prompts.js";
export type { Decider, LessonsOptions, RetrieveLessons, ShownLesson, StoreLesson } from "./lessons.js";
export { type CurrentPrompt, type PromptsOptions, promptMessages } from "./prompts.js";
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
export type { RewardEntry, RewardQuery, ToJudge } from "./rewards.js";
export {
  type Applied,
  type Environment,
  type Episode,
  LONGEST_EPISODE,
  RLInterface,
  type RLOptions,
  type SelectedMutation,
} from "./rl/interface.js";
export type { ServerOptions } from "./rl/server-process.js";
export {
  type Distribution,
  type Experience,
  type Loaded,
  MUTATIONS,
  type Mutation,
  type Saved,
  type SelectedAction,
  type State,
  type Stats,
  type StoredExperience,
  type Update,
} from "./rl/service.js";
export { RLTrainer, type Statistics, type TrainerOptions } from "./rl/trainer.js";
export type { StartTraining, TrainingStatus } from "./training.js";

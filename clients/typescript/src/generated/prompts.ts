// TEMPORARY
interface Answer<T> { content: { "application/json": T } }
interface Asked<T> { content: { "application/json": T } }
interface Losses { version: number; experience: number; policy_loss: number; value_loss: number; entropy: number; approx_kl: number; clip_share: number; explained_variance: number | null; learning_rate: number }
interface StateBody { embedding?: number[] | null; action_mask?: boolean[] | null; prompt?: string | null }
interface UpdateAnswer { state: string; version: number; waiting: number; needed: number; losses: Losses | null }
interface StoreAnswer { experience_id: string; stored: boolean; usable: boolean; waiting: number; needed: number; version: number }
interface SaveAnswer { name: string; version: number; sha256: string }
export interface paths {
  "/stats": { get: { responses: { 200: Answer<{ version: number; parent: number | null; updates: number; dimensions: number; actions: string[]; buffer: { size: number; waiting: number; needed: number }; experience: { received: number; trained: number; waiting: number; stale: number }; action_counts: Record<string, number>; mean_reward: number | null; saved: string[]; last_update: Losses | null }> } } };
  "/select_action": { post: { requestBody: Asked<StateBody & { deterministic?: boolean; seed?: number | null }>; responses: { 200: Answer<{ action: number; name: string; log_prob: number; value: number; probabilities: number[]; action_mask: boolean[]; version: number; embedding: number[] | null }> } } };
  "/get_distribution": { post: { requestBody: Asked<StateBody>; responses: { 200: Answer<{ probabilities: number[]; names: string[]; entropy: number; value: number; action_mask: boolean[]; version: number; embedding: number[] | null }> } } };
  "/store_experience": { post: { requestBody: Asked<{ embedding: number[]; action: number; reward: number; done: boolean; version: number; action_mask?: boolean[] | null; episode?: string | null; step?: number; experience_id?: string | null }>; responses: { 200: Answer<StoreAnswer>; 201: Answer<StoreAnswer> } } };
  "/update": { post: { requestBody: Asked<{ wait?: boolean }>; responses: { 200: Answer<UpdateAnswer>; 202: Answer<UpdateAnswer> } } };
  "/save": { post: { requestBody: Asked<{ name: string }>; responses: { 200: Answer<SaveAnswer>; 201: Answer<SaveAnswer> } } };
  "/load": { post: { requestBody: Asked<{ name: string }>; responses: { 200: Answer<SaveAnswer & { from_version: number }> } } };
}

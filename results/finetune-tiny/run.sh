#!/usr/bin/env bash
# Nyström and softmax encoders, each with the convolution and without, pretrained alike on Wikipedia and fine-tuned on
# parts of four tasks, Nyström at several numbers of landmarks: some six hours on two cores. Run it at the top of a clone,
# in its environment, with the data in place (data-preprocessing/wiki, glue, imdb); started again, it goes on where it was
# stopped.
set -euo pipefail
rows=data-preprocessing/512-wiki
python data-preprocessing/wiki/preprocess.py
python data-preprocessing/preprocess_data_512.py --corpus wiki=1 --tokenizer train --vocab_size 8192 --out $rows
models=(nystrom-tiny-conv nystrom-tiny-noconv softmax-tiny-conv softmax-tiny-noconv)
for model in "${models[@]}"; do
  python code/run_pretrain.py --model $model --dataset $rows
done
finetune() { # model, further flags
  local model=$1
  shift
  local common=(--model "$model" --seed 0,1,2 --discard_weights --baselines --set model.pooling=mean "$@")
  python code/run_glue.py --task SST-2 --glue glue --train_rows 15000 --epoch 3 --batch_size 32 --lr 1e-3 "${common[@]}"
  python code/run_imdb.py --imdb imdb --train_rows 2000 --validation 0.01 --length 512 --epoch 3 --batch_size 4 --lr 3e-4 "${common[@]}"
  python code/run_glue.py --task MRPC --glue glue --epoch 3 --batch_size 16 --lr 3e-4 "${common[@]}"
  python code/run_glue.py --task QNLI --glue glue --train_rows 4000 --epoch 2 --batch_size 16 --lr 3e-4 "${common[@]}"
}
for model in "${models[@]}"; do
  finetune "$model"
done
for landmarks in 16 8; do
  for model in nystrom-tiny-conv nystrom-tiny-noconv; do
    finetune "$model" --set model.num_landmarks=$landmarks
  done
done
python code/run_report.py table2 "${models[@]}" --out results/finetune-tiny/table2.md
